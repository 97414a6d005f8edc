"""`python -m engine COMMAND …`: everything the pages do, without a browser.

Exit status: 0 done, 2 the request is wrong (one line on standard error says what), 1 anything else (one line, and where the log is;
`--debug` shows the traceback), also where standard output is closed or full; 128 and the signal's number where a signal stopped it: 130
Ctrl-C, 143 SIGTERM, 129 SIGHUP. What was written until then is reported, written to --json and saved like a finished run, and marked stopped;
a second signal ends the program at once.
"""

from __future__ import annotations

from engine import interrupt

if __name__ == "__main__":
    interrupt.listen()  # before the imports below, which take their time

import argparse  # noqa: E402
import importlib  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402

from engine import streams  # noqa: E402

if __name__ == "__main__":
    streams.open_closed()

from engine.commands import NAMES, log_path  # noqa: E402
from engine.errors import RequestError  # noqa: E402

WRONG, FAILED, STOPPED = 2, 1, 130


class Parser(argparse.ArgumentParser):
    """argparse, with one line on standard error for a wrong request."""

    def error(self, message: str):
        raise RequestError(f"{message}. See {self.prog} --help.")


def main(arguments: list[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks × shows ?, and the run is not lost
    debug = "--debug" in (sys.argv[1:] if arguments is None else arguments)
    try:
        streams.require_output()
        return _run(arguments)
    except RequestError as e:
        _say(str(e))
        return WRONG
    except KeyboardInterrupt:
        _say("stopped.")
        return STOPPED
    except streams.OutputError as e:
        _say(str(e))
        return FAILED
    except Exception as e:
        if debug:
            traceback.print_exc()
        else:
            _say(f"{_reason(e)} {_write_log()}")
        return FAILED


def _run(arguments: list[str] | None) -> int:
    try:
        args = _parser().parse_args(arguments)
    except SystemExit:  # --help was printed
        streams.out("")
        return 0
    return importlib.import_module(f"engine.commands.{args.command}").run(args)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m engine", description="See what a local language model does with a prompt.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in NAMES:
        importlib.import_module(f"engine.commands.{name}").add_parser(subparsers)
    for command in subparsers.choices.values():
        command.add_argument("--debug", action="store_true", help="show tracebacks and what the libraries print")
    return parser


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "there was not enough memory."
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text or 'no further message'}" + ("" if text.endswith(".") else ".")


def _write_log() -> str:
    """Append the current traceback to the log; the words that say where it is."""
    try:
        path = log_path()
        with open(path, "a", encoding="utf-8") as f:
            f.write(f"\n{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n{traceback.format_exc()}")
        return f"The log is {path}."
    except (OSError, RequestError):
        return "Run it again with --debug for more."


def _say(message: str) -> None:
    streams.tell("speclens: " + " ".join(message.split()))


if __name__ == "__main__":
    sys.exit(main())
