"""What z′ ordinary text has, and the threshold that follows: writes engine/attention/null.json, which the Sinks page shows.

    python -m bench.null [--data ../shared/data] [--checkpoint FILE.npz] [--dtype auto] [--only-choose]

The bundled verifier reads prompts of its chat template around Polish prose of nine kinds, MT-bench questions and answers of
its own, 50 to 2,000 tokens each. The scores of all content tokens go into the checkpoint after every prompt, from which a
broken-off measurement goes on; `--only-choose` writes the curve anew from a finished one, without a model.
"""

from __future__ import annotations

import argparse
import datetime
import json
import lzma
import random
from pathlib import Path
from typing import Any

import numpy as np

from engine import prompts
from engine.attention.health import POWER, share_drained
from engine.attention.null import MOST, PATH, choose
from engine.attention.statistics import Scores, select, z_scores
from engine.attention.structural import structural
from engine.models import registry
from engine.tokens import Vocabulary

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
MODEL = "bundled:smollm2-135m"
LENGTHS = (50, 100, 200, 400, 800, 2000)  # content tokens of prompts cut from longer texts
THRESHOLDS = tuple(round(0.1 * i, 1) for i in range(10, 151))
PROVENANCE = ("model", "revision", "dtype", "backend")
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)  # over prompts


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
        if f"{n}.judged" in kept:
            continue
        prompt = prompts.build(model.vocabulary, text)
        flags = structural(model.vocabulary, prompt).flags
        s = z_scores(select(model.attention(prompt.ids)), flags)
        kept |= {f"{n}.judged": s.judged, f"{n}.z": s.z, f"{n}.structural": np.array(flags), f"{n}.attention": s.attention,
                 f"{n}.share": s.share, f"{n}.typical": s.typical_judged, f"{n}.ids": np.array(prompt.ids), f"{n}.genre": np.array(genre)}
        np.savez_compressed(checkpoint, **kept)
        print(f"{n + 1} of {len(asked)}: {genre}, {len(prompt.ids)} tokens", flush=True)
    f = model.facts
    return dict(zip(PROVENANCE, (f.title, f.revision, f.dtype, f"{f.backend} {f.backend_version}")))


def curve(checkpoint: Path, provenance: dict) -> dict:
    """What null.json holds. Shares are of content tokens: pooled over all, and as quantiles over prompts."""
    kept = np.load(checkpoint)
    count = len([k for k in kept if k.endswith(".judged")])
    content = [~kept[f"{n}.structural"] for n in range(count)]
    genres = [str(kept[f"{n}.genre"]) for n in range(count)]
    tokens = int(sum(c.sum() for c in content))
    points: list[dict] = [{"threshold": t} for t in THRESHOLDS]
    chosen, scores = {}, {}
    for name, key in (("corrected", "judged"), ("plain", "z")):
        scores[name] = [kept[f"{n}.{key}"][c] for n, c in enumerate(content)]
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
    marks = sorted(10 * (1 - drained(kept, n, at)) ** POWER for n in range(count))
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
        "quantiles": list(QUANTILES), "genres": rows, "curve": points}


def drained(kept: Any, n: int, threshold: float) -> float:
    judged, z, typical = (kept[f"{n}.{key}"] for key in ("judged", "z", "typical"))
    nothing = np.zeros(len(z))
    scores = Scores(kept[f"{n}.attention"], kept[f"{n}.share"], nothing, z, judged, judged, nothing, typical, typical, None, None, None, {}, {})
    return share_drained(scores, ~kept[f"{n}.structural"], threshold)


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
    made = curve(a.checkpoint, provenance)
    PATH.write_text(json.dumps(made, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    print(made["sentence"])


if __name__ == "__main__":
    main()
