"""Which typed paths are read at all. Decided from the path alone, before the file is opened: a refusal shows nothing of it."""

from __future__ import annotations

from pathlib import Path

TYPES = ["txt", "csv", "tsv", "jsonl", "ndjson", "json", "parquet"]
SYSTEM = ("/etc", "/proc", "/sys", "/dev", "/run", "/boot", "/private/etc", "/Library", "/System")


def refusal(path: str) -> str | None:
    """Why the file at `path` is not read, in one sentence; None where it may be (whether it is there is not asked)."""
    try:
        real = Path(path).expanduser().resolve()
        other = real.exists() and not real.is_file()
    except (OSError, RuntimeError, ValueError):
        return "This path leads nowhere; give the path of a file of prompts."
    ending = real.suffix.lower().removeprefix(".")
    if ending not in TYPES:
        return f"By its path a file of prompts is read whose own name ends in .{', .'.join(TYPES)}; this one does not."
    if any(real.is_relative_to(folder) for folder in SYSTEM):
        return "This file lies in a folder of the operating system, from where no prompts are read; copy it elsewhere."
    if ending != "parquet" and any(part.startswith(".") for part in real.parts):
        return "This file or a folder on its path is hidden, so it is not read; copy it elsewhere, or hand the file over above."
    return "This path is not of a file; give the path of a file of prompts." if other else None
