"""`python -m engine COMMAND …`: everything the pages do, without a browser.

Exit status: 0 done, 2 the request is wrong (one line on standard error says what), 130 stopped with Ctrl-C, 1 anything
else (one line, and where the log is; `--debug` shows the traceback).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback

from engine.commands import NAMES, log_path
from engine.errors import RequestError

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
        args = _parser().parse_args(arguments)
        return importlib.import_module(f"engine.commands.{args.command}").run(args)
    except RequestError as e:
        _say(str(e))
        return WRONG
    except KeyboardInterrupt:
        _say("stopped.")
        return STOPPED
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return FAILED
    except Exception as e:
        if debug:
            traceback.print_exc()
        else:
            _say(f"{_reason(e)} {_write_log()}")
        return FAILED


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
    print("speclens: " + " ".join(message.split()), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
