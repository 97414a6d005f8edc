"""Our cross-tokenizer decoding against transformers' own universal assisted generation, on one pair, in one process.

    python -m bench.uag [--verifier M] [--draft M] [--prompts 9] [--tokens 96] [--k 2 4] [--dtype float32] [--json FILE]

Greedy, raw text, the same k draft tokens a round for both. Three modes write each answer in alternating order: ours verifier-only,
ours with strategy `context`, and transformers' `generate(assistant_model=…, tokenizer=…, assistant_tokenizer=…)`. Every time is a whole
answer, prefill included, since that is what `generate` does. Ratios are of tokens per second, prompt by prompt; printed is the
median and the quartiles. transformers' candidates are counted in the verifier's forwards: ids fed beyond what was known; kept are
the emitted tokens less one a forward.

Then the share of decode time spent between the two tokenizers once --committed tokens of the verifier are there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time

import torch
import transformers

from bench.quiet import Watch, words
from engine import prompts
from engine.decoding.frame import drain
from engine.decoding.cross import CrossDrafter
from engine.decoding.loop import DRAFT_STREAM, decode
from engine.decoding.uag import Pair, pair
from engine.models import registry
from engine.prompt_sets.ready import builtin
from engine.sampling import Uniforms
from engine.trace import Generation, Prompt, Settings

STRATEGY, PREFIX = "context", 5
SPAN = 96  # tokens written to measure the translation's share
Both = tuple[Prompt, Prompt]


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--verifier", default="bundled:polish-verifier")
    p.add_argument("--draft", default="bundled:polish-draft")
    p.add_argument("--prompts", type=int, default=9)
    p.add_argument("--tokens", type=int, default=96)
    p.add_argument("--k", type=int, nargs="*", default=[2, 4])
    p.add_argument("--committed", type=int, default=2000)
    p.add_argument("--dtype", default="float32")
    p.add_argument("--json")
    a = p.parse_args()
    verifier, draft = registry.load(a.verifier, dtype=a.dtype), registry.load(a.draft, dtype=a.dtype)
    made = pair(verifier, draft, (STRATEGY,), PREFIX)
    texts = [prompt.text for prompt in builtin("polish").prompts]
    chosen = [(build(verifier, t), build(draft, t)) for t in texts[:: max(len(texts) // a.prompts, 1)][: a.prompts]]
    found: dict = {"verifier": verifier.facts.title, "draft": draft.facts.title, "dtype": verifier.facts.dtype, "tokens": a.tokens,
                   "threads": torch.get_num_threads(), "prompts": len(chosen)}
    for k in a.k:
        settings = Settings(gamma=k, max_tokens=a.tokens)
        modes = {"plain": lambda both: ours(made, both, settings, None), "ours": lambda both: ours(made, both, settings, STRATEGY),
                 "peer": lambda both: peer(verifier, draft, both[0], settings)}
        for mode in modes.values():  # warm-up
            mode(chosen[0])
        rows, watch = {m: [] for m in modes}, Watch()
        order = itertools.cycle([list(modes), list(modes)[::-1]])
        for i, both in enumerate(chosen):
            for m in next(order):
                rows[m].append(modes[m](both))
            print(f"\rk = {k}: {i + 1} of {len(chosen)}", end="", file=sys.stderr, flush=True)
        print("\r", end="", file=sys.stderr)
        timing = watch.found()
        found[f"k={k}"] = report(k, rows) | {"timing": timing}
        print(f"  {words(timing)}", flush=True)
    watch = Watch()
    found["translation"] = {k: at_length(made, texts, a.committed, k) for k in a.k}
    for k, t in found["translation"].items():
        print(f"k = {k}, from {t['committed']:,} committed tokens on: {t['share']:.2%} of decode time between the two tokenizers "
              f"({1e6 * t['seconds'] / t['rounds']:.0f} µs a round of {1e3 * t['decode'] / t['rounds']:.1f} ms), {t['tokens']} tokens")
    found["translation timing"] = watch.say()
    if a.json:
        with open(a.json, "w", encoding="utf-8") as f:
            json.dump(found, f, indent=1)


def build(model, text: str) -> Prompt:
    return prompts.build(model.vocabulary, text, raw=True)


def written(made: Pair, both: Both, settings: Settings, strategy: str | None) -> Generation:
    drafter = strategy and CrossDrafter(made.draft, made.verifier, made.translators[strategy], both, settings,
                                        Uniforms(0, DRAFT_STREAM), made.by_bytes)
    return drain(decode(made.verifier, drafter, both[0].ids, settings, watch=False))


def ours(made: Pair, both: Both, settings: Settings, strategy: str | None) -> dict:
    began = time.perf_counter()
    answer = written(made, both, settings, strategy)
    return {"ids": list(answer.ids), "rate": len(answer.ids) / (time.perf_counter() - began), "passes": len(answer.rounds),
            "accepted": sum(r.accepted for r in answer.rounds), "proposed": sum(len(r.proposed) for r in answer.rounds)}


@torch.inference_mode()
def peer(verifier, draft, prompt: Prompt, settings: Settings) -> dict:
    config = draft.network.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule, config.assistant_confidence_threshold = settings.gamma, "constant", 0.0
    fed: list[int] = []
    hook = verifier.network.register_forward_pre_hook(lambda _, args, kwargs: fed.append(kwargs["input_ids"].shape[1]), with_kwargs=True)
    ids = torch.tensor([prompt.ids])
    try:
        began = time.perf_counter()
        out = verifier.network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=settings.max_tokens,
                                        eos_token_id=list(verifier.ends), pad_token_id=verifier.ends[0], assistant_model=draft.network,
                                        tokenizer=verifier.vocabulary.tokenizer, assistant_tokenizer=draft.vocabulary.tokenizer)
        seconds = time.perf_counter() - began
    finally:
        hook.remove()
    answer = out[0, len(prompt.ids):].tolist()
    sent = fed[0] - len(prompt.ids) + sum(n - 1 for n in fed[1:])
    return {"ids": answer, "rate": len(answer) / seconds, "passes": len(fed), "accepted": len(answer) - len(fed), "proposed": sent}


def report(k: int, rows: dict[str, list[dict]]) -> dict:
    def spread(a: str, b: str) -> list[float]:
        ratios = [x["rate"] / y["rate"] for x, y in zip(rows[a], rows[b])]
        return [round(v, 3) for v in (statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3)]

    def kept(m: str) -> float:
        return sum(r["accepted"] for r in rows[m]) / max(sum(r["proposed"] for r in rows[m]), 1)

    found = {
        "tokens per second": {m: statistics.median(r["rate"] for r in of) for m, of in rows.items()},
        "ours / peer": spread("ours", "peer"), "ours / plain": spread("ours", "plain"), "peer / plain": spread("peer", "plain"),
        "acceptance": {m: kept(m) for m in ("ours", "peer")},
        "tokens per pass": {m: sum(len(r["ids"]) for r in of) / sum(r["passes"] for r in of) for m, of in rows.items()},
        "ids equal verifier-only's": {m: sum(x["ids"] == y["ids"] for x, y in zip(rows[m], rows["plain"])) for m in ("ours", "peer")},
    }
    print(f"k = {k}: " + ", ".join(f"{m} {v:.1f} tok/s" for m, v in found["tokens per second"].items()))
    for key in ("ours / peer", "ours / plain", "peer / plain"):
        low, middle, high = found[key]
        print(f"  {key}: {middle:.2f}× (quartiles {low:.2f}–{high:.2f})")
    for key in ("acceptance", "tokens per pass", "ids equal verifier-only's"):
        print(f"  {key}: " + ", ".join(f"{m} {v:.3g}" for m, v in found[key].items()), flush=True)
    return found


def at_length(made: Pair, texts: list[str], committed: int, k: int) -> dict:
    """Translation's share of decode behind about `committed` tokens: Polish prompts one after the other, then SPAN tokens."""
    limit = made.verifier.facts.context
    committed, text = committed if limit is None else min(committed, limit - SPAN), ""
    for part in itertools.cycle(texts):
        longer = f"{text}\n{part}" if text else part
        if len(build(made.verifier, longer).ids) > committed:
            break
        text = longer
    both = build(made.verifier, text), build(made.draft, text)
    answer = written(made, both, Settings(gamma=k, max_tokens=SPAN), STRATEGY)
    seconds, decode_seconds = sum(r.translate_seconds for r in answer.rounds), answer.timings[0].decode_seconds
    return {"committed": len(both[0].ids), "tokens": len(answer.ids), "rounds": len(answer.rounds), "seconds": seconds,
            "decode": decode_seconds, "share": seconds / decode_seconds}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main()
