"""The command line's options for a set of prompts: a page's choices of how a file is read and how much of it is used."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from engine.errors import RequestError

if TYPE_CHECKING:
    from engine.prompt_sets import PromptSet

READING = {"set_kind": "kind", "set_encoding": "encoding", "set_separator": "separator", "set_header": "header", "prompt_column": "column",
           "label_column": "label_column", "category_column": "category_column"}  # option → argument of `prompt_sets.read_file`
USING = ("first", "spread", "words")


def add(parser: argparse.ArgumentParser, number) -> None:
    """`number(name)` makes an argparse type of a bound. What is not given is detected, and all of a set is used."""
    g = parser.add_argument_group("a set of prompts", "How --prompt-set is read, where what is detected is not right, and how much of a set is used.")
    g.add_argument("--set-kind", metavar="KIND", help="lines, paragraphs, whole, csv, jsonl, json or parquet (detected)")
    g.add_argument("--set-encoding", metavar="NAME", help="such as utf-8, utf-16, cp1250, iso-8859-2 (detected)")
    g.add_argument("--set-separator", metavar="WORD", help="comma, semicolon, tab, pipe or none: between the cells of a table (detected)")
    g.add_argument("--set-header", choices=("yes", "no"), help="whether the first row of a table names its columns (detected)")
    g.add_argument("--prompt-column", metavar="NAME", help="the column that holds the prompts (detected)")
    g.add_argument("--label-column", metavar="NAME", help="the column that names them; '' is none (detected)")
    g.add_argument("--category-column", metavar="NAME", help="the column that sorts them into groups; '' is none (detected)")
    g.add_argument("--first", type=number("first"), metavar="N", help="use this many prompts (all)")
    g.add_argument("--spread", action="store_true", help="take those of --first evenly from the whole set, not from its beginning")
    g.add_argument("--words", type=number("words"), default=0, metavar="N", help="cut each prompt after this many words; 0 is whole (0)")


def read(args) -> PromptSet | None:
    """The set that parsed options name, None if they name none. RequestError where it cannot be read or an option has nothing to act on."""
    given = [name for name in (*READING, *USING) if getattr(args, name) not in (None, False, 0)]
    if args.prompt_set is None and args.ready_set is None:
        _refuse(given, "is for a set of prompts; name one with --prompt-set or --ready-set")
        return None
    from engine import prompt_sets

    if args.ready_set is not None:
        _refuse([name for name in given if name in READING], "says how a file is read; a ready-made set needs none of it")
        found = prompt_sets.builtin(args.ready_set)
    else:
        found = prompt_sets.read_file(args.prompt_set, **_how(args, prompt_sets.SEPARATORS))
    if args.spread and args.first is None:
        raise RequestError("--spread says where the prompts of --first are taken from; say how many with --first.")
    used = found if args.first is None else prompt_sets.first(found, args.first, args.spread)
    return prompt_sets.openings(used, args.words)


def _how(args, separators: dict[str, str]) -> dict[str, Any]:
    how = {argument: getattr(args, name) for name, argument in READING.items()}
    if args.set_header is not None:
        how["header"] = args.set_header == "yes"
    if args.set_separator is not None:
        words = {word.split(":")[0]: sign for sign, word in separators.items()}
        if args.set_separator not in words:
            raise RequestError(f"--set-separator is {args.set_separator!r}; it is one of {', '.join(words)}.")
        how["separator"] = words[args.set_separator]
    return how


def _refuse(given: list[str], why: str) -> None:
    if given:
        raise RequestError(f"--{given[0].replace('_', '-')} {why}.")
