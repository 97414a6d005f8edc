"""Whether greedy speculative answers are the verifier's own, token for token, and what that costs.

    python -m bench.exact [--prompts 100] [--tokens 128] [--gamma 4] [--dtype auto float32 bfloat16] [--pair english polish] [--json FILE]

Each prompt is answered verifier-only and then with every drafter of the pair: the draft model and prompt lookup for the English
pair, the strategies context and tli with both drafts for the Polish verifier; every answer once as a run makes it, with near ties
left to a pass of one row, and once without that guard. The prompts are mixed: instructions, code, lists, tables, stories, Polish
of three genres, through the chat template and then as raw text. Printed are answers equal of all, with and without the guard,
the positions that were guarded, and the guard's cost in tokens per second of decode (median over prompts).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from functools import partial
from typing import Callable

import torch

from bench.prompts import ALL
from bench.quiet import Watch
from engine import prompts
from engine.decoding import guard
from engine.decoding.compare import drafter_for
from engine.decoding.cross import CrossDrafter
from engine.decoding.frame import drain
from engine.decoding.loop import DRAFT_STREAM, decode
from engine.decoding.uag import pair
from engine.errors import RequestError
from engine.models import registry
from engine.prompt_sets.ready import builtin
from engine.sampling import Uniforms
from engine.trace import Generation, Prompt, Settings

STRATEGIES = ("context", "tli")
POLISH_DRAFTS = ("bundled:polish-draft", "bundled:polish-draft-general")
TIMED = 10  # prompts on which the guard's cost is measured; after them an answer in which nothing was guarded is not written again
Way = tuple[str, Settings, Callable[[Prompt, str, bool], object]]  # name, settings, (prompt, its text, raw) → a drafter


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--prompts", type=int, default=100)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--gamma", type=int, default=4)
    p.add_argument("--dtype", nargs="+", default=["float32", "bfloat16"])
    p.add_argument("--pair", nargs="+", choices=["english", "polish"], default=["english", "polish"])
    p.add_argument("--json")
    a = p.parse_args()
    found: dict = {"tokens": a.tokens, "gamma": a.gamma, "threads": torch.get_num_threads()}
    for dtype in a.dtype:
        for name in a.pair:
            watch = Watch()
            verifier = registry.load("bundled:smollm2-135m" if name == "english" else "bundled:polish-verifier", dtype=dtype)
            settings = Settings(gamma=a.gamma, max_tokens=a.tokens)
            ways = english(verifier, settings, dtype) if name == "english" else polish(verifier, settings, dtype)
            rows = [row for row in measured(verifier, ways, settings, mixed()[: a.prompts])]
            found[f"{name} {dtype}"] = report(f"{name}, {verifier.facts.dtype}", rows) | {"timing": watch.say()}
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=1)


def mixed() -> list[tuple[str, bool]]:
    """(text, raw): every prompt through the chat template, then every one as raw text."""
    texts = list(dict.fromkeys([*ALL, *(p.text for name in ("english", "polish") for p in builtin(name).prompts)]))
    return [(text, raw) for raw in (False, True) for text in texts]


def english(verifier, settings: Settings, dtype: str) -> list[Way]:
    draft = registry.load("bundled:smollm2-draft", dtype=dtype)
    lookup = replace(settings, drafter="lookup")
    return [("draft model", settings, lambda prompt, text, raw: drafter_for("speculative", verifier, draft, settings, prompt)),
            ("prompt lookup", lookup, lambda prompt, text, raw: drafter_for("speculative", verifier, None, lookup, prompt))]


def polish(verifier, settings: Settings, dtype: str) -> list[Way]:
    ways: list[Way] = []
    for name in POLISH_DRAFTS:
        draft = registry.load(name, dtype=dtype)
        made = pair(verifier, draft, STRATEGIES, 5)
        ways += [(f"{name.removeprefix('bundled:')} {s}", settings, partial(crossing, made, s, settings)) for s in STRATEGIES]
    return ways


def crossing(made, strategy: str, settings: Settings, prompt: Prompt, text: str, raw: bool) -> CrossDrafter:
    own = prompts.build(made.draft.vocabulary, text, raw=raw)
    return CrossDrafter(made.draft, made.verifier, made.translators[strategy], (prompt, own), settings, Uniforms(0, DRAFT_STREAM), made.by_bytes)


def measured(verifier, ways: list[Way], settings: Settings, asked: list[tuple[str, bool]]):
    """A row a prompt and way: whether the answers are equal, guarded positions, tokens, and tokens a second of each."""
    for at, (text, raw) in enumerate(asked):
        try:
            prompt = prompts.build(verifier.vocabulary, text, raw=raw)
        except RequestError as e:
            print(f"left out: {e}", file=sys.stderr)
            continue
        slack = guard.slack(verifier, prompt.ids, 2 * settings.gamma)
        plain = drain(decode(verifier, None, prompt.ids, settings, watch=False))
        for name, s, drafter in ways:
            answers = {}
            for guarded in (slack, 0.0) if at % 2 or at >= TIMED else (0.0, slack):
                if guarded or not slack or at < TIMED or any(r.tie is not None for r in answers[slack].rounds):
                    answers[guarded] = drain(decode(verifier, drafter(prompt, text, raw), prompt.ids, s, watch=False, slack=guarded))
            held = answers[slack]
            bare = answers.get(0.0, held)
            yield {"way": name, "equal": held.ids == plain.ids, "bare equal": bare.ids == plain.ids, "tokens": len(held.ids), "slack": slack,
                   "guarded": sum(r.tie is not None for r in held.rounds), "plain": rate(plain), "held": rate(held),
                   "bare": rate(bare) if at < TIMED else None}
        print(f"\r{at + 1} of {len(asked)}", end="", file=sys.stderr, flush=True)
    print("\r", end="", file=sys.stderr)


def rate(answer: Generation) -> float:
    return len(answer.ids) / answer.timings[0].decode_seconds


def report(title: str, rows: list[dict]) -> dict:
    found = {}
    print(f"{title}: near ties are closer than {rows[0]['slack']:.2g} logits" if rows[0]["slack"] else f"{title}: blocks equal single rows bit for bit")
    for way in dict.fromkeys(r["way"] for r in rows):
        mine = [r for r in rows if r["way"] == way]
        timed = [r for r in mine if r["bare"]]
        f = found[way] = {"answers": len(mine), "equal": sum(r["equal"] for r in mine), "equal without guard": sum(r["bare equal"] for r in mine),
                          "tokens": sum(r["tokens"] for r in mine), "guarded": sum(r["guarded"] for r in mine),
                          "cost": 1 - statistics.median(r["held"] / r["bare"] for r in timed),
                          "tokens per second": {k: statistics.median(r[k] for r in timed) for k in ("plain", "bare", "held")}}
        print(f"  {way}: {f['equal']} of {f['answers']} answers equal ({f['equal without guard']} without the guard); {f['guarded']:,} of "
              f"{f['tokens']:,} positions guarded; {f['tokens per second']['held']:.1f} tok/s ({f['tokens per second']['plain']:.1f} verifier-only), "
              f"{f['cost']:.1%} less than without", flush=True)
    return found


if __name__ == "__main__":
    main()
