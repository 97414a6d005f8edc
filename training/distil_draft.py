"""Distil `smollm2-draft`, a tiny draft model, from the verifier's own samples.

    python -m training.distil_draft --data smollm2_samples.npz --verifier DIR --out DIR --minutes 110

The draft is a plain Llama of three layers that knows only the 8,192 ids its teacher uses most. It learns the
teacher's distribution *at the temperature it will be sampled at* (0.7), first by cross-entropy against the ten best
log-probabilities, then more and more by the overlap Σ min(p, q) itself, which is the chance that a speculative
decoder keeps a token (Leviathan et al. 2023, section 3.2).

Much of what a language model writes stands already in its context, and a network this small does not learn to copy in
the time it has. So the draft has a copy head: where the last tokens occurred before, the token that followed then gets
the share λ of the probability, λ learned for each length of the match, together with the network.

Two processes of one thread each average their gradients: on two cores that beats one process of two threads.
A checkpoint is written every few minutes; the same command goes on from it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import Tokenizer
from torch import nn

from training.network import Draft, Muon, Shape
from training.samples import TEMPERATURE, Samples, assemble, batches, load


def losses(model: Draft, batch):
    """Cross-entropy in nats and overlap Σ min(p, q), both means over answer tokens, at TEMPERATURE."""
    ids, where, top_ids, top_p, copy_id, copy_length = batch
    h = model.hidden(ids).reshape(-1, model.shape.width)[where]
    logq = model.head(h / TEMPERATURE).log_softmax(-1).gather(1, top_ids)
    gate = torch.where(copy_length > 0, model.gate[copy_length], -30.0)[:, None]
    copied = torch.where(top_ids == copy_id[:, None], F.logsigmoid(gate), -30.0)
    logq = torch.logaddexp(F.logsigmoid(-gate) + logq, copied)
    return -(top_p * logq).sum(1).mean(), torch.minimum(top_p, logq.exp()).sum(1).mean()


@torch.no_grad()
def evaluate(model: Draft, s: Samples, most: int = 300) -> tuple[float, float]:
    rows = np.flatnonzero(s.held_out)[:most]
    total = np.zeros(3)
    for i in range(0, len(rows), 16):
        batch = assemble(s, [[j] for j in rows[i : i + 16]])
        ce, overlap = losses(model, batch)
        n = len(batch[1])
        total += np.array([ce.item() * n, overlap.item() * n, n])
    return total[0] / total[2], total[1] / total[2]


def work(rank: int, world: int, a):
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{a.out.resolve()}/rendezvous", rank=rank, world_size=world)
    shape = Shape(width=a.width, layers=a.layers, heads=a.width // 64, mlp=a.mlp)
    extra = np.array(json.loads((a.out / "extra_ids.json").read_text()))
    s = load(a.data, shape.vocabulary, extra)
    torch.manual_seed(0)
    model = Draft(shape)
    with safe_open(str(a.verifier / "model.safetensors"), "pt") as f:
        teacher = f.get_tensor("model.embed_tokens.weight").float()
    rows = teacher[torch.from_numpy(s.to_verifier)]
    model.start_from(torch.cat((rows, teacher.mean(0, keepdim=True))))
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("layers")]
    others = [p for n, p in model.named_parameters() if not (p.ndim == 2 and n.startswith("layers")) and n != "gate"]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=1.0, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    gates = torch.optim.Adam([model.gate], lr=0.01)
    spent, step = 0.0, 0
    saved = a.out / "checkpoint.pt"
    if saved.exists():
        c = torch.load(saved, weights_only=True)
        model.load_state_dict(c["model"], strict=False), muon.load_state_dict(c["muon"]), adam.load_state_dict(c["adam"])
        spent, step = c["spent"], c["step"]
    rng = np.random.default_rng(1000 + step)  # the same order in every process
    source = batches(s, rank, world, a.tokens, rng)
    last = noted = time.monotonic()
    running = np.zeros(2)
    parameters = [p for p in model.parameters()]
    while True:
        progress = spent / (a.minutes * 60)
        if world > 1:  # the first process's clock for all, or one would stop and leave the other waiting
            clock = torch.tensor([progress])
            dist.broadcast(clock, 0)
            progress = clock.item()
        if progress >= 1:
            break
        warm = min(1.0, (step + 1) / 100)
        decay = min(1.0, (1 - progress) / 0.5) ** 1.0
        for o, lr in ((muon, a.lr), (adam, a.lr_embed)):
            for g in o.param_groups:
                g["lr"] = lr * warm * max(decay, 0.01)
        ce, overlap = losses(model, next(source))
        share = 0.0 if progress < 0.3 else min(0.8, (progress - 0.3) / 0.3)
        ((1 - share) * ce - share * 3.0 * overlap).backward()
        if world > 1:
            flat = torch.cat([p.grad.flatten() for p in parameters])
            dist.all_reduce(flat)
            flat /= world
            at = 0
            for p in parameters:
                p.grad.copy_(flat[at : at + p.numel()].view_as(p))
                at += p.numel()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for o in (muon, adam, gates):
            o.step()
            o.zero_grad()
        step += 1
        running = 0.98 * running + 0.02 * np.array([ce.item(), overlap.item()])
        now = time.monotonic()
        spent += now - last
        last = now
        if rank == 0 and step % 25 == 0:
            fix = 1 - 0.98 ** min(step, 10_000)
            print(f"{spent/60:6.1f} min  step {step}  train ce {running[0]/fix:.3f}  overlap {running[1]/fix:.4f}  "
                  f"{spent/step:.2f} s/step", flush=True)
        if rank == 0 and (now - noted > 300 or progress > 0.999):
            noted = now
            ce_, ov_ = evaluate(model, s)
            gates_ = model.gate.sigmoid().detach().numpy().round(2)[1:]
            print(f"{spent/60:6.1f} min  HELD OUT ce {ce_:.3f}  alpha {ov_:.4f}  gates {gates_}", flush=True)
            save(saved, model, muon, adam, spent, step, s)
            last = time.monotonic()
    if rank == 0:
        print("held out, all:", evaluate(model, s, most=10**9), flush=True)
        save(saved, model, muon, adam, spent, step, s)


def save(path: Path, model: Draft, muon: Muon, adam: torch.optim.Optimizer, spent: float, step: int, s: Samples) -> None:
    part = path.with_suffix(".part")
    torch.save({"model": model.state_dict(), "muon": muon.state_dict(), "adam": adam.state_dict(), "spent": spent, "step": step,
                "shape": asdict(model.shape), "to_verifier": torch.from_numpy(s.to_verifier)}, part)
    os.replace(part, path)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--verifier", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--minutes", type=float, default=110)
    p.add_argument("--processes", type=int, default=2)
    p.add_argument("--tokens", type=int, default=3000, help="tokens per process and step")
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--layers", type=int, default=3)
    p.add_argument("--mlp", type=int, default=768)
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--lr-embed", type=float, default=3e-3)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    (a.out / "rendezvous").unlink(missing_ok=True)
    t = Tokenizer.from_file(str(a.verifier / "tokenizer.json"))
    vocabulary = t.get_vocab()
    extra = sorted({i for token, i in vocabulary.items() if len(token) == 1} | {i for i in range(0, 17)})
    (a.out / "extra_ids.json").write_text(json.dumps(extra))
    if a.processes == 1:
        work(0, 1, a)
    else:
        torch.multiprocessing.spawn(work, (a.processes, a), nprocs=a.processes)


if __name__ == "__main__":
    main()
