"""A strategy run made by hand: every round adds up, and causes, splits and refusals of all kinds occur."""

from __future__ import annotations

import random
from dataclasses import replace

from engine.trace import BONUS, CORRECTION, PLAIN, Generation, Prompt, Round, Timing, UagItem, UagResult, UagRun
from engine.trace.uag import CAUSES, STRATEGIES
from tests.sample import sample_run

PIECES = [" Za", "ż", "ó", "łć", " g", "ę", "ś", "lą", " ja", "ź", "ń", ".", " W", " rzece", "\n", "<b>", "ąż"]
DRAFT = [" Zażółć", " gęślą", " jaźń", ". W", " rzece", "\n<b>"]


def answer(luck: random.Random, strategy: str | None, k: int, tokens: int = 30) -> Generation:
    ids, rounds, clock = [], [], 0.0
    while len(ids) < tokens:
        want = [100 + (len(ids) + i) % len(PIECES) for i in range(k + 1)]
        proposed = () if strategy is None or (strategy == "none" and luck.random() < 0.5) else tuple(want[:k])
        accepted = luck.choice([0, 1, len(proposed)]) if proposed else 0
        closing = PLAIN if not proposed else BONUS if accepted == len(proposed) else CORRECTION
        emitted = (*proposed[:accepted], want[accepted] if closing != CORRECTION else 100 + (want[accepted] - 99) % len(PIECES))
        clock += 0.02 + 0.004 * len(proposed)
        refused = closing == CORRECTION
        rounds.append(Round(
            proposed=proposed, accepted=accepted, emitted=emitted, closing=closing, q=(None,) * len(proposed), p=(0.5,) * len(proposed),
            draw=(None,) * len(proposed), draft_entropy=(None,) * len(proposed), draft_normalised=(None,) * len(proposed), draft_seconds=0.003,
            verify_seconds=0.018, end=clock, draft_ids=() if strategy is None else tuple(500 + (len(ids) + i) % len(DRAFT) for i in range(k)),
            translate_seconds=0.0 if strategy is None else 0.0004, cause=luck.choice(CAUSES) if refused else None, gap=0.03 if refused else None,
            note=None if proposed or strategy is None else "no candidate could be sent"))
        ids += emitted
    text = "".join(PIECES[i - 100] for i in ids)
    timing = Timing(0.05, clock, 0.018 * len(rounds), 0.003 * len(rounds), len(ids), len(rounds))
    return Generation("plain" if strategy is None else "speculative", tuple(ids), text, rounds=tuple(rounds), timings=(timing,),
                      entropy=(1.0,) * len(ids), probability=(0.5,) * len(ids), top=(((100, 0.5), (101, 0.47)),) * len(ids))


def sample_uag(prompts: int = 2, strategies: tuple[str, ...] = STRATEGIES, ks: tuple[int, ...] = (2, 4), **changes) -> UagRun:
    luck, run = random.Random(1), sample_run()
    items = tuple(UagItem(Prompt(f"Wisła {i} <script>", (100, 101), raw=True, template=False), f"p{i}", "story", answer(luck, None, 0),
                          tuple(UagResult(s, k, answer(luck, s, k)) for s in strategies for k in ks)) for i in range(prompts))
    made = UagRun("20261201-120000-0a9000", "2026-12-01T12:00:00+00:00", items, strategies, ks, 5, run.settings, run.models, run.machine,
                  tokens={100 + i: p.encode().hex() for i, p in enumerate(PIECES)}, draft_tokens={500 + i: p.encode().hex() for i, p in enumerate(DRAFT)})
    return replace(made, **changes)
