"""Our decoding against transformers' own, on the bundled pair, in one process and in alternating order.

    python -m bench.compare [--prompts 20] [--tokens 128] [--gamma 4] [--dtype bfloat16] [--repeats 1] [--json FILE]

Four modes write each answer: ours verifier-only, transformers' `generate`, ours speculative, and transformers'
`generate(assistant_model=…)` with the same constant γ. Every time is a whole answer, prefill included, since that is
what `generate` does. Ratios are of tokens per second, prompt by prompt; printed is the median and the quartiles.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from dataclasses import replace

import psutil
import torch
import transformers

from bench.peers import PeerDraft
from bench.prompts import ALL, STRUCTURED
from bench.quiet import Watch
from engine import prompts
from engine.decoding.compare import drafter_for
from engine.decoding.frame import drain
from engine.decoding.loop import decode
from engine.models import registry
from engine.trace import Prompt, Sampling, Settings

SAMPLINGS = {"greedy": Sampling(), "T 0.7 top-p 0.9": Sampling(temperature=0.7, top_p=0.9, seed=1)}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--prompts", type=int, default=20)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--gamma", type=int, default=4)
    p.add_argument("--best-gamma", type=int, nargs="*", default=[1, 2, 3, 4, 6], help="γ tried on the structured prompts, ours only")
    p.add_argument("--dtype", default="auto")
    p.add_argument("--repeats", type=int, default=1)
    p.add_argument("--sampling", choices=list(SAMPLINGS), help="only this one")
    p.add_argument("--json")
    a = p.parse_args()
    verifier, draft = registry.load("bundled:smollm2-135m", dtype=a.dtype), registry.load("bundled:smollm2-draft", dtype=a.dtype)
    peer_draft = PeerDraft(draft, verifier.width)
    found: dict = {"dtype": verifier.facts.dtype, "gamma": a.gamma, "tokens": a.tokens, "prompts": a.prompts, "threads": torch.get_num_threads()}
    chosen = [prompts.build(verifier.vocabulary, text) for text in ALL[: a.prompts]]
    for name, sampling in SAMPLINGS.items():
        if a.sampling not in (None, name):
            continue
        settings = Settings(gamma=a.gamma, max_tokens=a.tokens, sampling=sampling)
        modes = {
            "ours plain": lambda q: ours(verifier, None, q, settings),
            "peer plain": lambda q: peer(verifier, None, q, settings),
            "ours speculative": lambda q: ours(verifier, draft, q, settings),
            "peer assisted": lambda q: peer(verifier, peer_draft, q, settings),
        }
        watch = Watch()
        rates = measure(modes, chosen, a.repeats, name)
        found[name] = {
            "tokens per second": {m: statistics.median(r["rate"] for r in rows) for m, rows in rates.items()},
            "plain / peer": spread(rates, "ours plain", "peer plain"),
            "speculative / peer": spread(rates, "ours speculative", "peer assisted"),
            "speculative / plain": spread(rates, "ours speculative", "ours plain"),
            "orchestration share": statistics.median(r["orchestration"] for r in rates["ours speculative"]),
            "acceptance": sum(r["accepted"] for r in rates["ours speculative"]) / sum(r["proposed"] for r in rates["ours speculative"]),
        }
        if name == "greedy":
            same = [x["ids"] == y["ids"] for x, y in zip(rates["ours plain"], rates["peer plain"])]
            found[name]["ids equal generate's"] = f"{sum(same)} of {len(same)}"
        report(name, found[name])
        found[name]["timing"] = watch.say()
        watch = Watch()
        best = best_gamma(verifier, draft, settings, a)
        found[name]["structured, best gamma"] = best
        print(f"  speculative / plain on structured prompts by γ: {', '.join(f'{g}: {v:.2f}×' for g, v in best.items())}", flush=True)
        found[name]["best gamma timing"] = watch.say()
    found["resident GB"] = psutil.Process().memory_info().rss / 1e9
    print(f"resident memory with both models: {found['resident GB']:.2f} GB ({verifier.facts.dtype}, {found['threads']} threads)")
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=1)


def ours(verifier, draft, prompt: Prompt, settings: Settings) -> dict:
    began = time.perf_counter()
    made = drain(decode(verifier, drafter_for("speculative" if draft else "plain", verifier, draft, settings, prompt), prompt.ids, settings, watch=False))
    seconds, t = time.perf_counter() - began, made.timings[0]
    return {"ids": list(made.ids), "rate": len(made.ids) / seconds, "accepted": sum(r.accepted for r in made.rounds),
            "proposed": sum(len(r.proposed) for r in made.rounds),
            "orchestration": 1 - (t.verify_seconds + t.draft_seconds) / t.decode_seconds}


@torch.inference_mode()
def peer(verifier, draft, prompt: Prompt, settings: Settings) -> dict:
    s = settings.sampling
    torch.manual_seed(s.seed)
    ids = torch.tensor([prompt.ids])
    how = dict(do_sample=not s.greedy, max_new_tokens=settings.max_tokens, eos_token_id=list(verifier.ends), pad_token_id=verifier.ends[0])
    if not s.greedy:
        how |= dict(temperature=s.temperature, top_p=s.top_p, top_k=0)
    if draft is not None:
        draft.generation_config.num_assistant_tokens = settings.gamma
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = 0.0
        how["assistant_model"] = draft
    began = time.perf_counter()
    out = verifier.network.generate(ids, attention_mask=torch.ones_like(ids), **how)[0, len(prompt.ids):].tolist()
    return {"ids": out, "rate": len(out) / (time.perf_counter() - began)}


def measure(modes: dict, chosen: list[Prompt], repeats: int, name: str) -> dict[str, list[dict]]:
    for mode in modes.values():  # warm-up
        mode(replace(chosen[0], ids=chosen[0].ids[:16]))
    rates: dict[str, list[dict]] = {m: [] for m in modes}
    order = itertools.cycle([list(modes), list(modes)[::-1]])
    for i, prompt in enumerate(chosen):
        for _ in range(repeats):
            for m in next(order):
                rates[m].append(modes[m](prompt))
        print(f"\r{name}: {i + 1} of {len(chosen)}", end="", file=sys.stderr, flush=True)
    print("\r", end="", file=sys.stderr)
    return rates


def spread(rates: dict, a: str, b: str) -> list[float]:
    """Lower quartile, median and upper quartile of a's rate over b's, answer by answer."""
    ratios = [x["rate"] / y["rate"] for x, y in zip(rates[a], rates[b])]
    return [round(v, 3) for v in (statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3)]


def best_gamma(verifier, draft, settings: Settings, a) -> dict[int, float]:
    """Speculative over verifier-only, median over the structured prompts, for each γ."""
    texts = [prompts.build(verifier.vocabulary, text) for text in STRUCTURED[: max(1, a.prompts // 2)]]
    plain = [ours(verifier, None, q, settings)["rate"] for q in texts]
    return {g: statistics.median(ours(verifier, draft, q, replace(settings, gamma=g))["rate"] / r for q, r in zip(texts, plain))
            for g in a.best_gamma}


def report(name: str, f: dict) -> None:
    print(f"{name}: " + ", ".join(f"{m} {v:.1f} tok/s" for m, v in f["tokens per second"].items()))
    for key in ("plain / peer", "speculative / peer", "speculative / plain"):
        low, middle, high = f[key]
        print(f"  {key}: {middle:.2f}× (quartiles {low:.2f}–{high:.2f})")
    print(f"  orchestration share {f['orchestration share']:.1%}, acceptance {f['acceptance']:.1%}"
          + (f", ids equal generate's on {f[key]}" if (key := "ids equal generate's") in f else ""), flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main()
