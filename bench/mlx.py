"""Our decoding on MLX against mlx-lm's own, on the bundled pair, in one process and in alternating order.

    python -m bench.mlx [--prompts 4] [--tokens 32] [--gamma 4] [--dtype float32] [--repeats 1] [--same-weights] [--json FILE]

Four modes write each answer, greedily: ours verifier-only, mlx-lm's `generate_step`, ours speculative, and mlx-lm's
`speculative_generate_step` with the same γ. Every time is a whole answer, prefill included. Ratios are of tokens per second,
answer by answer; printed is the median and the quartiles. mlx-lm loads its own copy of the weights, as it always does;
with --same-weights it runs on ours, which on a CPU are laid out for its plain BLAS: then decoding alone is compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import mlx.core as mx
from mlx_lm import utils as mlx_lm
from mlx_lm.generate import generate_step, speculative_generate_step

from bench.compare import measure, ours, spread
from bench.prompts import ALL
from bench.quiet import Watch, words
from engine import prompts
from engine.models import registry
from engine.models.mlx_copy_head import mixed
from engine.trace import Prompt, Settings


class PeerDraft:
    """Our draft with its stored map and copy head, in the shape mlx-lm's loop wants: the verifier's whole vocabulary."""

    def __init__(self, draft, network, width: int):
        self.draft, self.network, self.layers, self.width = draft, network, network.layers, width
        self.margin = len(draft.copies.share) - 1
        self.read = mx.full((self.margin + draft.facts.context,), -1, dtype=mx.int32)

    def __call__(self, ids: mx.array, cache):
        own = self.draft.to_draft[ids[0]]
        start = self.margin + cache[0].offset
        self.read[start : start + len(own)] = own
        row = self.network(own[None], cache=cache)[0, -1:, : self.draft.width]
        row = mixed(self.draft.copies, row, self.read[: start + len(own)])
        return mx.full((1, 1, self.width), -mx.inf).at[0, 0, self.draft.support].maximum(row[0])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--prompts", type=int, default=4)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--gamma", type=int, default=4)
    p.add_argument("--dtype", default="float32")
    p.add_argument("--repeats", type=int, default=1)
    p.add_argument("--same-weights", action="store_true")
    p.add_argument("--json")
    a = p.parse_args()
    verifier, draft = (registry.load(name, "auto", a.dtype, "mlx") for name in ("bundled:smollm2-135m", "bundled:smollm2-draft"))
    network, small = (m.network if a.same_weights else theirs(m, a.dtype) for m in (verifier, draft))
    peer_draft = PeerDraft(draft, small, verifier.width)
    settings = Settings(gamma=a.gamma, max_tokens=a.tokens)
    modes = {
        "ours plain": lambda q: ours(verifier, None, q, settings),
        "mlx-lm plain": lambda q: timed(verifier, settings, generate_step(mx.array(q.ids), network, max_tokens=a.tokens), q),
        "ours speculative": lambda q: ours(verifier, draft, q, settings),
        "mlx-lm speculative": lambda q: timed(verifier, settings, speculative_generate_step(
            mx.array(q.ids), network, peer_draft, num_draft_tokens=a.gamma, max_tokens=a.tokens), q),
    }
    watch = Watch()
    rates = measure(modes, [prompts.build(verifier.vocabulary, text) for text in ALL[: a.prompts]], a.repeats, "greedy")
    timing = watch.found()
    pairs = list(zip(rates["ours plain"], rates["mlx-lm plain"]))
    found = {
        "dtype": verifier.facts.dtype, "device": verifier.facts.device, "mlx": verifier.facts.backend_version, "gamma": a.gamma,
        "tokens": a.tokens, "prompts": a.prompts, "same weights": a.same_weights,
        "tokens per second": {m: round(statistics.median(r["rate"] for r in rows), 2) for m, rows in rates.items()},
        "plain / mlx-lm": spread(rates, "ours plain", "mlx-lm plain"),
        "speculative / mlx-lm": spread(rates, "ours speculative", "mlx-lm speculative"),
        "speculative / plain": spread(rates, "ours speculative", "ours plain"),
        "orchestration share": statistics.median(r["orchestration"] for r in rates["ours speculative"]),
        "acceptance": sum(r["accepted"] for r in rates["ours speculative"]) / sum(r["proposed"] for r in rates["ours speculative"]),
        "ids equal mlx-lm's": f"{sum(x['ids'] == y['ids'] for x, y in pairs)} of {len(pairs)}",
        "peak memory GB": mx.get_peak_memory() / 1e9,
    }
    for key, value in found.items():
        print(f"{key}: {value}")
    found["timing"] = timing
    print(words(timing))
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=1)


def theirs(model, dtype: str):
    """A network as mlx-lm loads it; the RoPE base, which it would miss, is in the bundled configs under the name it knows."""
    network, _ = mlx_lm.load_model(registry.resolve(model.facts.name).folder)
    network.set_dtype(getattr(mx, dtype))
    mx.eval(network.parameters())
    return network


def timed(verifier, settings: Settings, steps, prompt: Prompt) -> dict:
    """Take tokens from one of mlx-lm's generators until an end token."""
    began, ids = time.perf_counter(), []
    for token, *_ in steps:
        ids.append(int(token))
        if ids[-1] in verifier.ends:
            break
    steps.close()
    return {"ids": ids, "rate": len(ids) / (time.perf_counter() - began)}


if __name__ == "__main__":
    main()
