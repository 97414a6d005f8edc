"""Attention sums against the plain way: eager attention, all matrices kept, stacked and averaged.

    python -m bench.sinks [--tokens 1024 2048 8192] [--eager-up-to 2048] [--dtype float32] [--repeats 3] [--json FILE]

Memory is measured in a fresh process each, so that none is left over from another: the plain prefill (one session fed with
the whole prompt), the same reading with the sums taken, and the plain way; it is the highest resident size over that of the
loaded model. Prefill and sums are timed in turns, `--repeats` times after a warm-up, on the wall and in processor time (which
other work on the machine disturbs less); printed are medians. With 0 repeats the first time in each process is taken. The
plain way is timed once. Its mean attention per key must equal ours to 1e-4. At the end, one redraw: another choice of layers
and heads, z, health.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from bench.prompts import ALL
from bench.quiet import Watch, words

MODEL = "bundled:smollm2-135m"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 8192])
    p.add_argument("--eager-up-to", type=int, default=2048, help="longest prompt read the plain way; 2,048 tokens take 10 GB")
    p.add_argument("--dtype", default="float32")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--json")
    p.add_argument("--measure", choices=list(MEASURES), help=argparse.SUPPRESS)
    p.add_argument("--into", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.measure:
        return measure(a)
    found: dict = {"model": MODEL, "dtype": a.dtype, "threads": a.threads, "lengths": {}}
    print(f"{'tokens':>7} {'prefill':>9} {'sums':>9} {'÷ prefill':>9} {'processor':>9} {'plain way':>10} {'faster':>7} {'extra memory':>13} "
          f"{'plain way':>10} {'share':>7} {'resident':>9} {'difference':>10}")
    for tokens in a.tokens:
        with tempfile.TemporaryDirectory() as folder:
            row = {kind: fresh(kind, tokens, a, Path(folder)) for kind in MEASURES if kind != "eager" or tokens <= a.eager_up_to}
            ours, plain = row["sums"], row.get("eager")
            found["lengths"][tokens] = row
            for clock in () if a.repeats else ("seconds", "cpu_seconds"):
                ours["prefill_" + clock], ours["times_prefill_" + clock] = row["prefill"][clock], ours[clock] / row["prefill"][clock]
            line = (f"{tokens:>7,} {ours['prefill_seconds']:>8.2f}s {ours['seconds']:>8.2f}s {ours['times_prefill_seconds']:>8.2f}×"
                    f" {ours['times_prefill_cpu_seconds']:>8.2f}×")
            if plain:
                row["difference"] = float(np.abs(np.load(Path(folder) / "sums.npy") - np.load(Path(folder) / "eager.npy")).max())
                line += (f" {plain['seconds']:>9.1f}s {plain['seconds'] / ours['seconds']:>6.1f}× {ours['extra_bytes'] / 1e6:>10,.0f} MB"
                         f" {plain['extra_bytes'] / 1e6:>7,.0f} MB {'1/%.0f' % (plain['extra_bytes'] / ours['extra_bytes']):>7}")
            else:
                line += f" {'–':>10} {'–':>7} {ours['extra_bytes'] / 1e6:>10,.0f} MB {'–':>10} {'–':>7}"
            print(line + f" {ours['resident_bytes'] / 1e9:>6.2f} GB {row.get('difference', float('nan')):>10.1e}", flush=True)
            print(f"        over the prefill {(ours['extra_bytes'] - row['prefill']['extra_bytes']) / 1e6:,.0f} MB, forecast "
                  f"{ours['forecast_bytes'] / 1e6:,.0f} MB; one redraw {ours['redraw_seconds'] * 1000:,.0f} ms", flush=True)
        for kind, of in row.items():
            if isinstance(of, dict):
                print(f"        {kind}: {words(of['timing'])}", flush=True)
    if a.json:
        Path(a.json).write_text(json.dumps(found, indent=1), encoding="utf-8")


def fresh(kind: str, tokens: int, a: argparse.Namespace, folder: Path) -> dict:
    """One measurement in a process of its own."""
    command = [sys.executable, "-m", "bench.sinks", "--measure", kind, "--tokens", str(tokens), "--dtype", a.dtype, "--threads", str(a.threads),
               "--repeats", str(a.repeats), "--into", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{kind} at {tokens} tokens failed: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(a: argparse.Namespace) -> None:
    """In the fresh process: load, read, print one line of JSON."""
    import torch

    from engine.attention.peak import measure_peak
    from engine.models import registry

    torch.set_num_threads(a.threads)
    model = registry.load(MODEL, dtype=a.dtype)
    ids = []
    while len(ids) < a.tokens[0]:
        ids += model.vocabulary.encode("\n\n".join(ALL[(len(ids) // 100) % len(ALL):] + ALL))
    ids, read = ids[: a.tokens[0]], MEASURES[a.measure]
    model.attention(ids[:32])
    resident, watch = psutil.Process().memory_info().rss, Watch()
    with measure_peak() as peak:
        kept, first = timed(read, model, ids)
    found = {"extra_bytes": peak.extra_bytes, "resident_bytes": resident + peak.extra_bytes, "seconds": first[0], "cpu_seconds": first[1]}
    if a.measure == "sums":
        found |= {"forecast_bytes": told(len(ids)), "redraw_seconds": redraw(kept, len(ids)), "row_error": kept.row_error}
        kept = kept.received.mean((0, 1)) / np.arange(len(ids), 0, -1)
        turns = [(timed(prefill, model, ids)[1], timed(read, model, ids)[1]) for _ in range(a.repeats)]
        for at, clock in enumerate(("seconds", "cpu_seconds") if turns else ()):
            found[clock] = statistics.median(with_sums[at] for _, with_sums in turns)
            found["prefill_" + clock] = statistics.median(plain[at] for plain, _ in turns)
            found["times_prefill_" + clock] = statistics.median(with_sums[at] / plain[at] for plain, with_sums in turns)
    found["timing"] = watch.found()
    if kept is not None:
        np.save(Path(a.into) / f"{a.measure}.npy", kept)
    print(json.dumps(found))


def timed(read, model, ids: list[int]) -> tuple:
    """What `read` gives, and its (wall, processor) seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    kept = read(model, ids)
    return kept, (time.perf_counter() - wall, time.process_time() - cpu)


def prefill(model, ids: list[int]) -> None:
    session = model.session(len(ids))
    session.feed(ids, 1)
    session.close()


def eager(model, ids: list[int]) -> np.ndarray:
    """The plain way: mean attention per key (S,) over layers, heads and the queries that can see it, from all matrices."""
    import torch

    model.network.set_attn_implementation("eager")
    with torch.inference_mode():
        shown = model.network(torch.tensor([ids]), output_attentions=True, use_cache=False).attentions
        mean = torch.stack(shown).float().mean((0, 1, 2))
    return (mean.sum(0) / torch.arange(len(ids), 0, -1)).numpy()


def told(tokens: int) -> int:
    """What the page says before the run."""
    from engine.attention.forecast import forecast
    from engine.models.source import config

    return forecast(config(MODEL), tokens).extra_bytes


def redraw(sums, tokens: int) -> float:
    """Seconds from moved controls to new numbers: other layers, other heads, z and health, without the model."""
    from engine.attention.view import view
    from engine.trace import Prompt, SinkItem

    item = SinkItem(Prompt("", tuple(range(tokens)), None, True, False), structural=(True,) + (False,) * (tokens - 1), sums=sums)
    view(item, 5.0)
    began = time.perf_counter()
    view(item, 6.0, layers=range(5, 25), heads=range(0, 8))
    return time.perf_counter() - began


MEASURES = {"prefill": prefill, "sums": lambda model, ids: model.attention(ids), "eager": eager}

if __name__ == "__main__":
    main()
