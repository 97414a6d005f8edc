"""generation_config.json: the end tokens and the sampling defaults hidden in it.

Read here and not by transformers, which overlooks a file that is not JSON: the end tokens come from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Mapping

from engine.errors import RequestError
from engine.models.config_fields import ENDS, LARGEST, damaged, ends_fit, json_object, number, text_config

FILE = "generation_config.json"
SAMPLING_DEFAULTS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}  # name: off


@dataclass(frozen=True)
class Habits:
    """`ends`: end-of-text ids, several perhaps. `defaults`: sampling defaults that would change what is drawn. `notes`: a sentence
    for everything in the file that was ignored."""

    ends: tuple[int, ...] = ()
    defaults: Mapping[str, float] = ()
    notes: tuple[str, ...] = ()


def read(folder: Path, config: Mapping[str, Any]) -> Habits:
    """What a model folder says of its habits; `config`: its config.json, which names end tokens too.

    RequestError that names the file and the field where one is damaged. A default that is no usable number (NaN, a negative
    temperature) is ignored with a note: all of them are off anyway, and only listed.
    """
    file = folder / FILE
    said = json_object(file) if file.is_file() else {}
    if not ends_fit(said.get("eos_token_id")):
        raise RequestError(damaged(file, "eos_token_id", said["eos_token_id"], ENDS))
    found: list[int] = []
    for value in (said.get("eos_token_id"), text_config(config).get("eos_token_id")):
        found += [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int) and i >= 0 and i not in found]
    source = said if file.is_file() else config  # old folders keep their defaults in config.json
    defaults, notes = {}, []
    for name, off in SAMPLING_DEFAULTS.items():
        value = source.get(name)
        if value is None or value == off:
            continue
        if not number(value):
            raise RequestError(damaged(file if source is said else folder / "config.json", name, value, "a number"))
        if not 0 <= value <= LARGEST:  # NaN fits nowhere
            notes.append(f"The default {name} in {FILE} is {value}, which is no setting; it is ignored.")
        else:
            defaults[name] = value
    return Habits(tuple(found), defaults, tuple(notes))


def ends(habits: Habits, tokenizers_own: int | None, rows: int | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """All end tokens, the tokenizer's own too, and a note on those named in the files that can never come: the model has `rows` rows.
    (A tokenizer may have an end token that its library invented.)"""
    found = dict.fromkeys([*habits.ends, *([] if tokenizers_own is None else [tokenizers_own])])
    never = [i for i in habits.ends if rows is not None and i >= rows]
    return (tuple(i for i in found if rows is None or i < rows),
            tuple(f"The end token {i:,} has no row in the model, which has {rows:,}, and can never come." for i in never[:1]))
