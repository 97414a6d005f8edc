"""Sets of prompts that come with the program, written for it. The Polish encyclopaedic ones are openings, for base models to go on with."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

from engine.errors import RequestError
from engine.prompt_sets import records
from engine.prompt_sets.collecting import chosen
from engine.prompt_sets.shapes import PromptSet

FOLDER = Path(__file__).with_name("data")
BUILTIN = {  # name → title; what stands after a dot is one category of the file before it
    "english": "English: explain, code, list, story, data (20 prompts)",
    "polish": "Polish: three genres (36 prompts)",
    "polish.encyclopaedic": "Polish: encyclopaedic openings (12 prompts)",
    "polish.instructions": "Polish: instructions (12 prompts)",
    "polish.questions": "Polish: short questions (12 prompts)",
}


@lru_cache(maxsize=None)
def builtin(name: str) -> PromptSet:
    """The set called `name`, a key of BUILTIN. Raises RequestError for another name."""
    if name not in BUILTIN:
        raise RequestError(f"There is no set of prompts {name!r}; there are {', '.join(BUILTIN)}.")
    file, _, category = name.partition(".")
    text = (FOLDER / f"{file}.jsonl").read_text(encoding="utf-8")
    found = chosen(records.json_lines(text), "jsonl", name, "prompt", "id", "category")
    return dataclasses.replace(found, encoding="utf-8", prompts=tuple(p for p in found.prompts if category in ("", p.category)))
