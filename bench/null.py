"""What z′ ordinary text has, and the threshold that follows: writes engine/attention/null.json, which the Sinks page shows.

    python -m bench.null [--data ../shared/data] [--checkpoint FILE.npz] [--dtype auto] [--only-choose]

The bundled verifier reads prompts of its chat template around Polish prose of nine kinds, MT-bench questions and answers of
its own, 50 to 2,000 tokens each. The means that scores are made of go into the checkpoint after every prompt, from which a
broken-off measurement goes on; `--only-choose` scores a finished one anew, without a model. Printed is the choice, and how
often tokens are flagged by the number of queries that see them: a score is fair to every position if that is level.
"""

from __future__ import annotations

import argparse
import datetime
import json
import lzma
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import numpy as np

from engine import prompts
from engine.attention.health import POWER, opening_sink, share_drained
from engine.attention.null import MOST, PATH, choose
from engine.attention.statistics import Scores, Selection, select, z_scores
from engine.attention.structural import structural
from engine.models import registry
from engine.tokens import Vocabulary

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
MODEL = "bundled:smollm2-135m"
LENGTHS = (50, 100, 200, 400, 800, 2000)  # content tokens of prompts cut from longer texts
THRESHOLDS = tuple(round(0.1 * i, 1) for i in range(10, 151))
PROVENANCE = ("model", "revision", "dtype", "backend")
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)  # over prompts
QUERIES = (1, 16, 32, 64, 100, 200, 400, 800, 1600, 3200)  # edges of the table of flagged tokens by queries
SAMPLE = 1_000  # content tokens that a row of it must have to be told in a sentence


@dataclass(frozen=True, eq=False)
class Measured:
    """One prompt: its kind, (S,) bool for the template's tokens, and its scores."""

    genre: str
    structural: np.ndarray
    scores: Scores


def texts(data: Path, vocabulary: Vocabulary, seed: int = 0) -> list[tuple[str, str]]:
    """(genre, text) of every prompt, the same ones each time."""
    draw = random.Random(seed)
    found: list[tuple[str, str]] = []
    for path in sorted((data / "polish").glob("*.txt.xz")):
        lines = lzma.open(path, "rt", encoding="utf-8").read().splitlines()
        for length in draw.sample(LENGTHS, 4):
            found.append((f"Polish, {path.name.removesuffix('.txt.xz')}", grown(vocabulary, lines, draw.randrange(len(lines)), length)))
    questions = [json.loads(line) for line in (data / "mt_bench_question.jsonl").read_text(encoding="utf-8").splitlines()]
    joined = ["\n\n".join(q["turns"]) for q in questions]
    for i in range(0, len(questions), 10):
        long = [t for t in joined[i:i + 10] if 50 <= len(vocabulary.encode(t)) <= 2000]
        found += [("English, MT-bench question", t) for t in draw.sample(long, min(2, len(long)))]
    kept = np.load(data / "smollm2_samples.npz")
    ends = np.cumsum(kept["answer_lengths"])
    for n in range(18):
        which = draw.randrange(len(ends) - 100)
        answers = [vocabulary.text_of(kept["answer_ids"][a:b].tolist()) for a, b in zip(ends[which:which + 20], ends[which + 1:which + 21])]
        found.append(("English, answers of the model", grown(vocabulary, answers, 0, LENGTHS[n % len(LENGTHS)], "\n\n")))
    draw.shuffle(found)
    return found


def grown(vocabulary: Vocabulary, lines: list[str], start: int, length: int, between: str = "\n") -> str:
    """Lines from `start` on, to `length` tokens at the most."""
    text = ""
    for i in range(start, start + len(lines)):
        longer = text + between * bool(text) + lines[i % len(lines)]
        ids = vocabulary.encode(longer)
        if len(ids) >= length:
            return vocabulary.text_of(ids[:length])
        text = longer
    return text


def measure(data: Path, checkpoint: Path, dtype: str) -> dict:
    model = registry.load(MODEL, dtype=dtype)
    asked = texts(data, model.vocabulary)
    kept = dict(np.load(checkpoint)) if checkpoint.exists() else {}
    for n, (genre, text) in enumerate(asked):
        if f"{n}.attention" in kept:
            continue
        prompt = prompts.build(model.vocabulary, text)
        flags = structural(model.vocabulary, prompt).flags
        s = select(model.attention(prompt.ids))
        kept |= {f"{n}.attention": s.attention, f"{n}.share": s.share, f"{n}.queries": s.queries, f"{n}.recent": s.recent.astype(np.float32),
                 f"{n}.structural": np.array(flags), f"{n}.genre": np.array(genre)}
        np.savez_compressed(checkpoint, **kept)
        print(f"{n + 1} of {len(asked)}: {genre}, {len(prompt.ids)} tokens", flush=True)
    f = model.facts
    return dict(zip(PROVENANCE, (f.title, f.revision, f.dtype, f"{f.backend} {f.backend_version}")))


def scored(checkpoint: Path) -> Iterator[Measured]:
    """Every prompt of a checkpoint, scored."""
    kept = np.load(checkpoint)
    for n in range(len([k for k in kept if k.endswith(".attention")])):
        one = Selection(*(kept[f"{n}.{name}"] for name in ("attention", "share", "queries")), kept[f"{n}.recent"].astype(float))
        yield Measured(str(kept[f"{n}.genre"]), kept[f"{n}.structural"], z_scores(one, kept[f"{n}.structural"]))


def curve(prompts: list[Measured], provenance: dict) -> dict:
    """What null.json holds. Shares are of content tokens: pooled over all, and as quantiles over prompts."""
    count = len(prompts)
    content = [~p.structural for p in prompts]
    genres = [p.genre for p in prompts]
    tokens = int(sum(c.sum() for c in content))
    points: list[dict] = [{"threshold": t} for t in THRESHOLDS]
    chosen, scores = {}, {}
    for name, key in (("corrected", "z_corrected"), ("plain", "z")):
        scores[name] = [getattr(p.scores, key)[c] for p, c in zip(prompts, content)]
        each = np.array([[np.mean(s >= t) for t in THRESHOLDS] for s in scores[name]])  # NaN is never above a threshold
        pooled = [float(sum((s >= t).sum() for s in scores[name])) / tokens for t in THRESHOLDS]
        chosen[name] = choose(THRESHOLDS, pooled)
        for point, share, row in zip(points, pooled, each.T):
            point |= {f"share_{name}": round(share, 6), f"prompts_{name}": [round(float(q), 6) for q in np.quantile(row, QUANTILES)]}
    at = chosen["corrected"]
    flagged = [int((s >= at).sum()) for s in scores["corrected"]]
    genre = {g: [n for n, other in enumerate(genres) if other == g] for g in sorted(set(genres))}
    rows = [{"genre": g, "prompts": len(mine), "tokens": int(sum(content[n].sum() for n in mine)), "flagged": sum(flagged[n] for n in mine)}
            for g, mine in genre.items()]
    marks = sorted(10 * (1 - drained(p, at)) ** POWER for p in prompts)
    seen = by_queries(prompts, chosen)
    rates = [100 * row["share_corrected"] for row in seen if row["tokens"] >= SAMPLE]
    share, made = sum(flagged) / tokens, datetime.date.today().isoformat()
    return {
        "threshold": at, "threshold_plain": chosen["plain"], "most": MOST, "made": made, **provenance, "prompts": count, "content_tokens": tokens,
        "shortest": int(min(c.sum() for c in content)), "longest": int(max(c.sum() for c in content)), "share": round(share, 6),
        "unscored_tokens": int(sum(np.isnan(s).sum() for s in scores["corrected"])), "prompts_with_a_sink": sum(f > 0 for f in flagged),
        "sentence": f"At threshold {at:g}, {100 * share:.2f} % of {tokens:,} content tokens of ordinary text are flagged: {count} prompts of "
                    f"{len(genre)} kinds, English and Polish, read by {provenance['model']} in {provenance['dtype']} on {made}. It is the "
                    f"smallest with at most {100 * MOST:g} %.",
        "health": [round(float(q), 2) for q in np.quantile(marks, QUANTILES)],
        "health_sentence": f"Such text has a context health of {marks[0]:.1f} to {marks[-1]:.1f}, median {np.median(marks):.1f}.",
        "queries": seen, "queries_sentence": f"By the number of queries that see a token, it is {min(rates):.1f} to {max(rates):.1f} %." if rates else "",
        "quantiles": list(QUANTILES), "genres": rows, "curve": points}


def by_queries(prompts: list[Measured], thresholds: dict[str, float]) -> list[dict]:
    """How many scored content tokens that `from` to `below` queries see are flagged by z′ and by z, each at its threshold, and their
    median scores: 0 of either is what a typical token has, wherever it stands."""
    flat = {name: np.concatenate([values(p)[~p.structural] for p in prompts]) for name, values in (
        ("queries", lambda p: p.scores.queries), ("corrected", lambda p: p.scores.z_corrected), ("plain", lambda p: p.scores.z))}
    rows = []
    for low, high in zip(QUERIES, QUERIES[1:]):
        where = (flat["queries"] >= low) & (flat["queries"] < high) & ~np.isnan(flat["corrected"]) & ~np.isnan(flat["plain"])
        if where.any():
            rows.append({"from": low, "below": high, "tokens": int(where.sum())} | {
                f"{what}_{name}": round(float(value), 6) for name, at in thresholds.items() for what, value in (
                    ("share", np.mean(flat[name][where] >= at)), ("median", np.median(flat[name][where])))})
    return rows


def table(rows: list[dict]) -> str:
    """`by_queries` for a terminal."""
    lines = [f"{'queries':>12} {'tokens':>7} {'z′ flagged':>11} {'median':>7} {'z flagged':>10} {'median':>7}"]
    return "\n".join(lines + [f"{row['from']:>6,}–{row['below'] - 1:<5,} {row['tokens']:>7,} {row['share_corrected']:>11.2%} {row['median_corrected']:>+7.2f} "
                              f"{row['share_plain']:>10.2%} {row['median_plain']:>+7.2f}" for row in rows])


def drained(prompt: Measured, threshold: float) -> float:
    return share_drained(prompt.scores, ~prompt.structural & ~opening_sink(prompt.scores), threshold)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, default=DATA)
    p.add_argument("--checkpoint", type=Path, default=Path("null.npz"))
    p.add_argument("--dtype", default="auto")
    p.add_argument("--only-choose", action="store_true")
    a = p.parse_args()
    if a.only_choose:
        old = json.loads(PATH.read_text(encoding="utf-8"))
        provenance = {key: old[key] for key in PROVENANCE}
    else:
        provenance = measure(a.data, a.checkpoint, a.dtype)
    made = curve(list(scored(a.checkpoint)), provenance)
    PATH.write_text(json.dumps(made, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    print(made["sentence"], made["queries_sentence"], made["health_sentence"])
    print(table(made["queries"]))


if __name__ == "__main__":
    main()
