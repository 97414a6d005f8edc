"""Standard input, output and error, any of which may be closed, full or gone."""

from __future__ import annotations

import os
import sys

_closed = False  # standard output was closed when the program began


class OutputError(Exception):
    """Standard output cannot take what is told. The message is one plain sentence; the exit status is 1."""


def open_closed() -> None:
    """Give standard streams that are closed an empty device, before any file takes their number: a library's line would end in it."""
    global _closed
    _closed = sys.stdout is None
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")


def require_output() -> None:
    """OutputError at once, rather than after a long run, if there is no standard output."""
    if _closed:
        raise OutputError("Standard output is closed, so nothing can be told; leave it open, or send it to a file.")


def out(text: str, *, encoding: str | None = None) -> None:
    """Write to standard output, all of it and now. `encoding`: whatever the terminal's may be."""
    try:
        stream = getattr(sys.stdout, "buffer", None) if encoding else None
        sys.stdout.flush()
        stream.write(text.encode(encoding)) if stream else sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up(sys.stdout)
        raise OutputError("The reader of standard output went away before everything was written.") from None
    except (OSError, ValueError) as e:
        _give_up(sys.stdout)
        raise OutputError(f"Standard output cannot be written ({getattr(e, 'strerror', None) or e}).") from None


def tell(text: str) -> None:
    """One line on standard error, if anybody can hear it."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        _give_up(sys.stderr)


def _give_up(stream) -> None:
    """What could not be written stays in the stream, and is tried again when Python ends: let it go nowhere."""
    number = {id(sys.__stdout__): 1, id(sys.__stderr__): 2}.get(id(stream))
    if number is not None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
