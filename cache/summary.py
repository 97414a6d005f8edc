"""One line of the list of runs, and the index that spares reading a thousand files to make it."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path

from engine import run_files
from engine.analysis.metrics import metrics
from engine.errors import RequestError
from engine.models.home import write_atomic
from engine.trace import AnyRun, EntropyRun, Run, SinksRun, UagRun, plain_data

log = logging.getLogger(__name__)

INDEX = "summaries.index"  # beside the runs; may be deleted at any time
VERSION = 3  # raise it when Summary or one of its figures changes: the index is then made anew
SHOWN = 160  # characters of the prompt


@dataclass(frozen=True)
class Summary:
    """What the list shows of a run. `damaged` says why a file cannot be read; then only id, path and bytes are known."""

    id: str
    path: str
    bytes: int
    created: str = ""  # ISO 8601, UTC
    name: str = ""
    kind: str = ""
    status: str = ""
    verifier: str = ""
    draft: str = ""
    gamma: int | None = None
    temperature: float | None = None
    acceptance: float | None = None
    speedup: float | None = None  # None too where the timing was disturbed
    tokens: int = 0  # of the longer answer
    prompt: str = ""  # its start, white space run together
    notes: tuple[str, ...] = ()
    damaged: str | None = None


def summarise(run: AnyRun, path: Path, size: int) -> Summary:
    if not -2**31 < getattr(getattr(run, "settings", None), "gamma", 0) < 2**31:
        raise ValueError("gamma is beyond every number of draft tokens")
    of_kind = {"compare": _compare, "sinks": _sinks, "entropy": _entropy, "uag": _uag}[run.kind]
    return Summary(id=run.id, path=str(path), bytes=size, created=run.created, name=run.name, kind=run.kind, status=run.status,
                   notes=run.notes, **of_kind(run))


def _compare(run: Run) -> dict:
    figures = metrics(run)
    answers = [side.ids for side in (run.plain, run.speculative) if side is not None]
    draft = "prompt lookup" if run.settings.drafter == "lookup" else _title(run, "draft")
    return dict(verifier=_title(run, "verifier"), draft=draft, gamma=run.settings.gamma, temperature=run.settings.sampling.temperature,
                acceptance=figures["acceptance_rate"], speedup=None if figures["disturbed"] else figures["speedup"],
                tokens=max(map(len, answers), default=0), prompt=_start(run.prompt.text))


def _sinks(run: SinksRun) -> dict:
    return dict(verifier=_title(run, "model"), tokens=sum(len(item.prompt.ids) for item in run.items), prompt=_prompts(run))


def _entropy(run: EntropyRun) -> dict:
    return dict(verifier=_title(run, "model"), temperature=run.settings.sampling.temperature, prompt=_prompts(run),
                tokens=sum(len(item.answer.ids) for item in run.items if item.answer))


def _uag(run: UagRun) -> dict:
    answers = [g for item in run.items for g in (item.plain, *(result.answer for result in item.results)) if g is not None]
    return dict(verifier=_title(run, "verifier"), draft=_title(run, "draft"), gamma=run.ks[0] if len(run.ks) == 1 else None,
                temperature=run.settings.sampling.temperature, tokens=max((len(g.ids) for g in answers), default=0), prompt=_prompts(run))


def _title(run: AnyRun, role: str) -> str:
    return run.models[role].title if role in run.models else ""


def _prompts(run: SinksRun | EntropyRun | UagRun) -> str:
    """The start of the first prompt, and how many more there are."""
    first = _start(run.items[0].prompt.text) if run.items else ""
    return f"{first} (+ {len(run.items) - 1} more)" if len(run.items) > 1 else first


def _start(text: str) -> str:
    return " ".join(text[:4 * SHOWN].split())[:SHOWN]


def read_summary(path: Path, size: int) -> Summary:
    """The summary of a file, whatever it holds."""
    try:
        return summarise(run_files.read(path), path, size)
    except ValueError as e:
        return Summary(path.stem, str(path), size, damaged=str(e))
    except Exception as e:  # JSON of the right form and impossible content, from another hand
        log.warning("No figures can be made from %s", path, exc_info=e)
        return Summary(path.stem, str(path), size, damaged="This run file is damaged: its figures do not fit together.")


def load_index(folder: Path) -> dict[str, tuple[int, int, Summary]]:
    """id → (the file's stamp, bytes, summary); empty if there is no readable index."""
    try:
        data = json.loads((folder / INDEX).read_bytes())
        if data["version"] != VERSION:
            return {}
        return {id: (stamp, size, Summary(id=id, path=str(folder / f"{id}.json"), bytes=size,
                                          **{**values, "notes": tuple(values["notes"])}))
                for id, (stamp, size, values) in data["runs"].items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        log.info("The index %s is unreadable and is made anew", folder / INDEX)
        return {}


def save_index(folder: Path, known: dict[str, tuple[int, int, Summary]]) -> None:
    """Keep the index for the next start. That it cannot be written costs time then, so it is no error now."""
    own = ("id", "path", "bytes")
    runs = {id: [stamp, size, {k: v for k, v in plain_data(summary).items() if k not in own}]
            for id, (stamp, size, summary) in known.items()}
    try:
        write_atomic(folder / INDEX, json.dumps({"version": VERSION, "runs": runs}))
    except RequestError as e:
        log.info("%s", e)
