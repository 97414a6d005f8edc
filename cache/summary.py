"""One line of the list of runs, and the index that spares reading a thousand files to make it."""

from __future__ import annotations

import dataclasses
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from engine.analysis.metrics import metrics
from engine.errors import RequestError
from engine.models.home import write_atomic
from engine.trace import Run, from_json, plain_data

log = logging.getLogger(__name__)

INDEX = "summaries.index"  # beside the runs; may be deleted at any time
VERSION = 1  # raise it when Summary or one of its figures changes: the index is then made anew
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
    speedup: float | None = None
    tokens: int = 0  # of the longer answer
    prompt: str = ""  # its start, white space run together
    notes: tuple[str, ...] = ()
    damaged: str | None = None


def summarise(run: Run, path: Path, size: int) -> Summary:
    figures = metrics(run)
    answers = [side.ids for side in (run.plain, run.speculative) if side is not None]
    draft = "prompt lookup" if run.settings.drafter == "lookup" else run.models["draft"].title if "draft" in run.models else ""
    return Summary(
        id=run.id, path=str(path), bytes=size, created=run.created, name=run.name, kind=run.kind, status=run.status,
        verifier=run.models["verifier"].title if "verifier" in run.models else "", draft=draft,
        gamma=run.settings.gamma, temperature=run.settings.sampling.temperature,
        acceptance=figures["acceptance_rate"], speedup=figures["speedup"], tokens=max(map(len, answers), default=0),
        prompt=" ".join(run.prompt.text[:4 * SHOWN].split())[:SHOWN], notes=run.notes)


def read_run(path: Path) -> Run:
    """The run in a file, under the id its name gives. ValueError says in one sentence why it is none."""
    try:
        if not path.is_file():  # a folder or a pipe of that name, or nothing
            raise ValueError("This is not a file.")
        run = from_json(path.read_bytes())
    except OSError as e:
        raise ValueError(f"This file cannot be read ({e.strerror}).") from None
    except RecursionError:
        raise ValueError("This run file is damaged: it is nested too deeply.") from None
    return dataclasses.replace(run, id=path.stem)


def read_summary(path: Path, size: int) -> Summary:
    """The summary of a file, whatever it holds."""
    try:
        return summarise(read_run(path), path, size)
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
