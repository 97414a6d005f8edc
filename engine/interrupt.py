"""What SIGINT (Ctrl-C), SIGTERM and SIGHUP do to a command.

One that has begun to write is asked to stop, and keeps what it wrote; a second signal, or one that comes earlier, ends the program at
once. Ending does not raise: an exception out of a signal shows a traceback wherever a library is being imported or an object thrown
away. Nothing is imported here that is not quick, for a signal may come while the program itself is still being imported.
"""

from __future__ import annotations

import _signal as signal  # `signal` itself first imports 10 ms of enumerations
import os

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
voice = 2  # descriptor of the real standard error: `quiet` sends number 2 to the log
_unfinished: set[str] = set()
_listener: Stopping | None = None


class Stopping:
    """While it is entered, signals are heard by it. `end(number)`, a function, is what ends the program."""

    def __init__(self, end):
        self._end, self._armed, self.heard, self._before = end, False, 0, {}

    def __call__(self, number: int, _frame: object = None) -> None:
        if not self._armed or self.heard:
            self._end(number)
        self.heard = number

    def __enter__(self) -> Stopping:
        """A hang-up that is ignored from the start (`nohup`) stays ignored. In a thread no signal arrives."""
        for number in SIGNALS:
            if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                try:
                    self._before[number] = signal.signal(number, self)
                except ValueError:  # not the main thread
                    break
        return self

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def arm(self) -> None:
        """From now on there is something to keep: the first signal only asks to stop."""
        self._armed = True

    def asked(self) -> bool:
        """Whether a signal asked to stop."""
        return self.heard != 0

    @property
    def status(self) -> int:
        """The exit status of a command that was stopped: 128 and the signal's number, so 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 128 + (self.heard or signal.SIGINT)


def listen() -> None:
    """Hear signals until the program ends; for the program itself, which calls it before it imports anything else."""
    global _listener
    _listener = Stopping(leave).__enter__()


def stopping() -> Stopping:
    """For one command, to be entered. Inside another program, which does not `listen`, the end is a KeyboardInterrupt."""
    return Stopping(_raise if _listener is None else leave)


def leave(number: int) -> None:
    """End the program now, with one line and without anything half made. No traceback, no clean-up that could fail."""
    _discard()
    try:
        os.write(voice, (b"\n" if os.isatty(voice) else b"") + b"speclens: stopped.\n")
    except OSError:
        pass
    os._exit(128 + number)


def _raise(number: int) -> None:
    raise KeyboardInterrupt


class unfinished:
    """While it is entered, `path` (a file or folder that is being made under a temporary name) is deleted if the program is ended."""

    def __init__(self, path: os.PathLike | str):
        self._path = os.fspath(path)

    def __enter__(self) -> None:
        _unfinished.add(self._path)

    def __exit__(self, *_: object) -> None:
        _unfinished.discard(self._path)


def _discard() -> None:
    for path in list(_unfinished):
        try:
            if os.path.isdir(path):
                import shutil

                shutil.rmtree(path, ignore_errors=True)
            else:
                os.unlink(path)
        except OSError:
            pass
