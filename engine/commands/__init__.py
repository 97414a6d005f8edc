"""The commands of `python -m engine`, one file each, and what they share.

A command is a module with `add_parser(subparsers)` and `run(args) -> int`, the exit status. Its imports at the top are
light: torch is imported only once a command runs, so that `--help` and a refused option answer at once.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import pkgutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Callable, Iterator, TextIO

from engine import interrupt, set_options, stops
from engine.errors import RequestError
from engine.limits import LIMITS
from engine.models.device import DEVICES, DTYPES
from engine.models.home import folder, write_atomic
from engine.models.registry import BACKENDS
from engine.request import Asked
from engine.streams import out, tell
from engine.trace import AnyRun, Sampling

NAMES = tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))  # a new command is a new file
LOG_LIMIT = 1_000_000  # bytes kept before the log begins anew
PROMPT_FILE_LIMIT = 16_000_000  # bytes; no context is that long


def number(name: str) -> Callable[[str], float]:
    """An argparse type: a number that the bound called `name` holds."""
    bound = LIMITS[name]

    def parse(text: str) -> float:
        try:
            value = int(text) if bound.whole else float(text)
        except ValueError:
            value = None
        if value is None or not bound.holds(value):
            raise argparse.ArgumentTypeError(f"{text!r} is not {'a whole number' if bound.whole else 'a number'} {bound.span}")
        return value

    return parse


def add_pair_options(parser: argparse.ArgumentParser, lookup: str) -> None:
    """A verifier and what drafts for it; `lookup` says what prompt lookup does in this command."""
    parser.add_argument("--verifier", metavar="MODEL", required=True)
    drafter = parser.add_mutually_exclusive_group(required=True)
    drafter.add_argument("--draft", metavar="MODEL")
    drafter.add_argument("--lookup", action="store_true", help=lookup)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    """How a token is drawn, alike for every command; `sampling_of` reads them."""
    s = Sampling()
    parser.add_argument("--temperature", type=number("temperature"), default=s.temperature, metavar="T", help="0 is greedy (0)")
    parser.add_argument("--top-k", type=number("top_k"), default=s.top_k, metavar="K", help="0 is off (0)")
    parser.add_argument("--top-p", type=number("top_p"), default=s.top_p, metavar="P", help="1 is off (1)")
    parser.add_argument("--min-p", type=number("min_p"), default=s.min_p, metavar="P", help="0 is off (0)")
    parser.add_argument("--repetition-penalty", type=number("repetition_penalty"), default=s.repetition_penalty, metavar="X",
                        help="1 is off (1)")
    parser.add_argument("--seed", type=number("seed"), default=s.seed, metavar="N", help="(0)")
    parser.add_argument("--stop", type=stops.read, action="append", metavar="TEXT", help=f"{stops.HELP} May be given more than once. (none)")


def stops_of(args) -> tuple[str, ...]:
    """The stop strings that parsed options give, each once. RequestError if they are none."""
    for text in args.stop or ():
        require_text("stop string", text)
    return tuple(dict.fromkeys(args.stop or ()))


def sampling_of(args) -> Sampling:
    return Sampling(args.temperature, args.top_k, args.top_p, args.min_p, args.repetition_penalty, args.seed)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Where and how models run, alike for every command."""
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0], help=f"engine that runs the models ({BACKENDS[0]})")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="(auto)")
    parser.add_argument("--dtype", choices=DTYPES, default="auto",
                        help="precision; auto is half on an accelerator, and on a CPU float32 for a model that fits its memory (auto)")
    parser.add_argument("--json", metavar="PATH", help="write the result as one JSON object to PATH; - is standard output")


def add_prompt_options(parser: argparse.ArgumentParser):
    """One prompt, or a set of them; returns the group of options of which one is needed."""
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument("--prompt-file", metavar="FILE", help="the whole file is the prompt; - is standard input")
    prompt.add_argument("--prompt-set", metavar="FILE", help="a file of prompts: TXT (one a line), CSV, JSONL, JSON or Parquet")
    prompt.add_argument("--ready-set", metavar="NAME", help="a set that comes with the program: english, polish, polish.encyclopaedic, …")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    set_options.add(parser, number)
    return prompt


def prompts_of(args) -> tuple[Asked, ...]:
    """The prompts that parsed options name; RequestError if the texts are none. Bad rows of a set are told and left out."""
    require_text("system message", args.system)
    found = set_options.read(args)
    if found is None:
        return (Asked(prompt_of(args)),)
    for problem in found.problems:
        tell(f"speclens: {printable(problem.sentence)}")
    if not found.prompts:
        raise RequestError(f"{args.prompt_set or args.ready_set} holds no prompt.")
    return tuple(Asked(p.text, p.label, p.category or "") for p in found.prompts)


def prompt_of(args) -> str:
    """The one prompt that parsed options give; RequestError if it is empty or no text."""
    text = args.prompt if args.prompt_file is None else read_prompt_file(args.prompt_file)
    require_text("prompt", text)
    if not text.strip():
        raise RequestError("The prompt is empty; give some text with --prompt or --prompt-file.")
    return text


def look_over(asked) -> None:
    """Fetch what a request needs from the hub, and refuse what its files alone rule out: before torch, which takes seconds to import."""
    from engine import preflight
    from engine.models import source

    source.require(*preflight.models(asked))
    preflight.files(asked, held=0)


def keep(run: AnyRun) -> RequestError | None:
    """Save a run among the app's; what went wrong, if anything, so that the result is told first (a full disk loses no work)."""
    from engine.run_files import write

    try:
        path = folder("runs") / f"{run.id}.json"
        write(run, path)
    except RequestError as e:
        return e
    tell(f"saved {path}")
    return None


def read_prompt_file(path: str) -> str:
    """The text of a prompt file: UTF-8 with or without a mark, or UTF-16 with one; LF line ends; no final line end.

    Raises RequestError for a missing file, another encoding or a NUL byte (never a silent repair).
    """
    try:
        # Never more than the limit: a device or a pipe has no size to ask for, and may have no end.
        if path == "-" and sys.stdin is None:
            raise RequestError("Standard input is closed, so there is no prompt to read from it; use --prompt, or name a file.")
        if path == "-":
            data = sys.stdin.buffer.read(PROMPT_FILE_LIMIT + 1)
        else:
            with open(path, "rb") as f:
                data = f.read(PROMPT_FILE_LIMIT + 1)
    except (OSError, ValueError) as e:
        raise RequestError(f"The prompt file {path} cannot be read ({getattr(e, 'strerror', None) or e}).") from None
    if len(data) > PROMPT_FILE_LIMIT:
        raise RequestError(f"The prompt file {path} is larger than {PROMPT_FILE_LIMIT // 1_000_000} MB; no model reads that much.")
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as e:
        name = "UTF-16" if encoding == "utf-16" else "UTF-8"
        line = data[: e.start].count(b"\n") + 1
        raise RequestError(f"The prompt file {path} is not {name} (line {line}, byte {e.start}); save it as UTF-8.") from None
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\0" in text:
        line = text[: text.index("\0")].count("\n") + 1
        raise RequestError(f"The prompt file {path} has a NUL byte in line {line}, so it is not text; remove it.")
    return text.removesuffix("\n")


def require_text(name: str, text: str | None) -> None:
    """RequestError if an argument came in bytes that are no text (they arrive as lone surrogates)."""
    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise RequestError(f"The {name} is not valid UTF-8; put it into a file and use --prompt-file.") from None


def require_writable(path: str | None) -> None:
    """RequestError before a long run, rather than after it, if the result could not be written to `path`."""
    if path in (None, "-"):
        return
    try:
        _require_writable(path, _target(path))
    except (OSError, RuntimeError) as e:  # RuntimeError: links in a circle
        raise RequestError(f"--json {path} cannot be written ({getattr(e, 'strerror', None) or 'its links lead in a circle'}).") from None


def _target(path: str) -> Path:
    """Where `path` is written. A link is written through, not replaced. OSError for a name that no file can have."""
    with contextlib.suppress(FileNotFoundError):
        os.stat(path)
    given = Path(path)
    return given if given.exists() and not given.is_file() else given.resolve()  # what stands behind /dev/stdout has no path


def _require_writable(path: str, target: Path) -> None:
    if target.is_dir() or not target.parent.is_dir():
        what = "is a folder" if target.is_dir() else "lies in a folder that does not exist"
        raise RequestError(f"--json {path} {what}; give the path of a file to write.")
    if target.exists() and not target.is_file():  # a device or a pipe; to open and close a pipe would end its reader
        if not os.access(target, os.W_OK):
            raise RequestError(f"--json {path} cannot be written (permission denied).")
        return
    tempfile.TemporaryFile(dir=target.parent).close()


def write_json(data: dict, path: str) -> None:
    """One strict JSON object to `path` (atomically), or to standard output for "-"."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n"
    if path == "-":
        return out(text, encoding="utf-8")
    target = _target(path)
    if target.is_file() or not target.exists():
        write_atomic(target, text)
        return
    try:
        target.write_text(text, encoding="utf-8")  # a device or a pipe is written to; a file put in its place would end it
    except OSError as e:
        raise RequestError(f"--json {path} cannot be written ({e.strerror}).") from None


def printable(text: str) -> str:
    """Text from a model without control characters, which a terminal would obey."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def log_path() -> Path:
    path = folder("logs") / "engine.log"
    if path.exists() and path.stat().st_size > LOG_LIMIT:
        path.write_bytes(b"")
    return path


@contextlib.contextmanager
def quiet(debug: bool = False) -> Iterator[TextIO]:
    """Send everything that libraries print, at the level of file descriptors, to the log.

    Gives a stream on the real standard error for progress. Under `debug` nothing is redirected.
    """
    for name, value in (("TRANSFORMERS_VERBOSITY", "error"), ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
                        ("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1"), ("TOKENIZERS_PARALLELISM", "false")):
        os.environ.setdefault(name, value)
    if debug:
        logging.basicConfig(level=logging.INFO)
        yield sys.stderr
        return
    sys.stdout.flush(), sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    log = os.open(log_path(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    terminal = os.fdopen(os.dup(2), "w", encoding=getattr(sys.stderr, "encoding", None) or "utf-8", errors="replace")
    os.dup2(log, 1), os.dup2(log, 2)
    interrupt.voice = kept[1]
    try:
        with warnings.catch_warnings(), terminal:
            warnings.simplefilter("ignore")
            yield terminal
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        os.dup2(kept[0], 1), os.dup2(kept[1], 2)
        interrupt.voice = 2
        for descriptor in (*kept, log):
            os.close(descriptor)


class Progress:
    """One line that overwrites itself, on a terminal only, and is gone at the end of its `with`, however that comes."""

    def __init__(self, stream: TextIO):
        self.stream, self.shown, self.at = (stream if stream.isatty() else None), 0, 0.0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_) -> None:
        self.clear()

    def say(self, text: str, *, now: bool = False) -> None:
        if self.stream is None or (not now and time.monotonic() - self.at < 0.1):
            return
        text = printable(text).replace("\n", " ")[:100]
        self.stream.write("\r" + text + " " * max(self.shown - len(text), 0))
        self.stream.flush()
        self.shown, self.at = len(text), time.monotonic()

    def clear(self) -> None:
        if self.stream is not None and self.shown:
            self.stream.write("\r" + " " * self.shown + "\r")
            self.stream.flush()
            self.shown = 0
