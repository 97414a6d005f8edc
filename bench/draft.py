"""The bundled draft's per-token acceptance and cost.

    python -m bench.draft [--tokens 128] [--dtype bfloat16]

α is the mean of Σ min(p, q) over every position of the verifier's own samples at temperature 0.7, on the benchmark's
prompts, which the draft was not trained on (Leviathan et al. 2023, corollary 3.6). c is the median time of one draft
token over the median time of one verifier token, taken in turn after the same text.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from bench.prompts import ALL
from engine import prompts
from engine.decoding.frame import drain
from engine.decoding.loop import decode
from engine.models import registry
from engine.trace import Sampling, Settings


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--dtype", default="auto")
    p.add_argument("--temperature", type=float, default=0.7)
    a = p.parse_args()
    verifier, draft = registry.load("bundled:smollm2-135m", dtype=a.dtype), registry.load("bundled:smollm2-draft", dtype=a.dtype)
    overlaps: list[float] = []
    for seed, text in enumerate(ALL):
        prompt = prompts.build(verifier.vocabulary, text)
        s = Settings(max_tokens=a.tokens, sampling=Sampling(temperature=a.temperature, seed=seed))
        ids = [*prompt.ids, *drain(decode(verifier, None, prompt.ids, s, watch=False)).ids]
        overlaps += overlap(verifier, draft, ids, len(prompt.ids), a.temperature)
    print(f"alpha {statistics.mean(overlaps):.3f} over {len(overlaps)} positions, temperature {a.temperature}, {verifier.facts.dtype}")
    print("c {:.3f} (draft {:.2f} ms, verifier {:.2f} ms a token)".format(*cost(verifier, draft, ids)))


@torch.inference_mode()
def overlap(verifier, draft, ids: list[int], start: int, temperature: float) -> list[float]:
    """Σ min(p, q) at every position from `start` on."""
    count = len(ids) - start
    p = (verifier.session(len(ids)).feed(ids[:-1], count) / temperature).softmax(-1)
    q = (draft.session(len(ids)).feed(ids[:-1], count) / temperature).softmax(-1)
    if draft.support is not None:
        p = p[:, draft.support]
    return torch.minimum(p, q).sum(-1).tolist()


def cost(verifier, draft, ids: list[int], times: int = 200) -> tuple[float, float, float]:
    """(c, draft ms, verifier ms) of one token after the same text."""
    sessions = [m.session(len(ids) + 2) for m in (draft, verifier)]
    taken: list[list[float]] = [[], []]
    for s in sessions:
        s.feed(ids[:-1], 0)
    for _ in range(times):
        for session, times_ in zip(sessions, taken):
            began = time.perf_counter()
            session.feed(ids[-1:], 1)
            times_.append(time.perf_counter() - began)
            session.rewind(1)
    d, v = (statistics.median(t) * 1e3 for t in taken)
    return d / v, d, v


if __name__ == "__main__":
    main()
