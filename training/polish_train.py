"""Train a small Polish language model, a plain Llama with tied embeddings, on one CPU core.

    python -m training.polish_train --texts DIR --tokenizer tokenizer.json --out DIR --minutes 66 --compile
    python -m training.polish_train --texts DIR --written written.txt.xz --tokenizer polish.json --init DIR --out DIR --layers 3 --mlp 512

The softmax runs over the ids that occur in the texts (and every byte and special id). All other ids of the tokenizer share one row,
counted as often as there are such ids, so that the exported model, which has the full vocabulary, is the very model that was trained.
Matrices learn by Muon, the rest by Adam; the rate warms up, stays, and falls over the last share of the time, while the texts read
shift towards prose. Products run in bfloat16 where the CPU has units for it. A checkpoint is written every few minutes; the same
command goes on from it.
"""

from __future__ import annotations

import argparse
import functools
import json
import lzma
import os
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from training.network import Draft, Muon, Shape
from training.polish_corpus import HELD_OUT, LAST_SHARES, SHARES, Cut, cut, documents, rows

ALWAYS, DRAWN = 2500, 1200  # ids in every softmax, and ids drawn for it, until the rate falls
UNSEEN = 0.002  # share of the loss that asks for some probability on the ids never seen


class Tied(Draft):
    """The network of `training/network.py` with one matrix for input and output."""

    def __init__(self, s: Shape, known: torch.Tensor, full: int):
        """known: (s.vocabulary − 1,) ids of the tokenizer, ascending; full: its size. The last row stands for all the others."""
        super().__init__(s)
        del self.gate, self.head
        nn.init.normal_(self.embed.weight, std=0.1)
        self.norm.data.fill_(0.5)
        to_row = torch.full((full,), s.vocabulary - 1)
        to_row[known] = torch.arange(len(known))
        self.register_buffer("to_row", to_row)
        self.register_buffer("known", known)
        bias = torch.zeros(s.vocabulary)
        bias[-1] = float(np.log(max(full - len(known), 1)))
        self.register_buffer("bias", bias)


class Head(torch.autograd.Function):
    """Cross-entropy of a large softmax, a few hundred tokens at a time, its gradient taken on the way: one array, never copied."""

    @staticmethod
    def forward(ctx, h, weight, bias, targets, smooth, chunk=384):
        """h (n, width), weight (vocabulary, width), targets (n,) -> mean nats; smooth of the loss asks for the last row instead."""
        low = torch.bfloat16 if bf16() else torch.float32
        w, n, nats = weight.to(low), len(h), 0.0
        dh, dw = torch.empty_like(h), torch.zeros_like(weight)
        for i in range(0, n, chunk):
            part, t = h[i : i + chunk].to(low), targets[i : i + chunk, None]
            p = torch.mm(part, w.T).float().add_(bias)
            top = p.amax(1, keepdim=True)
            chosen = p.gather(1, t) - top
            p = p.sub_(top).exp_()
            total = p.sum(1, keepdim=True)
            nats += (total.log() - chosen).sum().item()
            p /= total
            p.scatter_add_(1, t, torch.full_like(chosen, smooth - 1))
            p[:, -1] -= smooth
            q = p.to(low)
            dh[i : i + chunk] = torch.mm(q, w)
            dw += torch.mm(q.T, part)
        ctx.save_for_backward(dh.div_(n), dw.div_(n))
        return h.new_tensor(nats / n)

    @staticmethod
    def backward(ctx, grad):
        dh, dw = ctx.saved_tensors
        return dh * grad, dw * grad, None, None, None, None


def loss_of(model: Tied, ids, smooth: float, always=None):
    """Mean nats per token, ids (rows, length + 1) of the tokenizer; negative ones (−1 − id) are read and not learned.

    always: bool (vocabulary,), ids that every softmax holds. Then the others are held if they occur in `ids` or are drawn, and those
    drawn count for those not drawn, so that the sum under the softmax is right on average (importance sampling).
    """
    learned = (ids[:, 1:] >= 0).flatten()
    ids = model.to_row[torch.where(ids < 0, -1 - ids, ids)]
    h, targets = model.hidden(ids[:, :-1]).flatten(0, 1)[learned].float(), ids[:, 1:].flatten()[learned]
    if always is None:
        return Head.apply(h, model.embed.weight, model.bias, targets, smooth)
    held = always.clone()
    held[targets] = True
    rest = (~held).nonzero()[:, 0]
    drawn = rest[torch.randperm(len(rest))[:DRAWN]]
    bias = model.bias.clone()
    bias[drawn] += float(np.log(max(len(rest), 1) / max(len(drawn), 1)))
    held[drawn] = True
    rows_ = held.nonzero()[:, 0]
    place = torch.zeros(len(held), dtype=torch.long)
    place[rows_] = torch.arange(len(rows_))
    return Head.apply(h, model.embed.weight[rows_], bias[rows_], place[targets], smooth)


def frequent(c: Cut, model: Tied) -> torch.Tensor:
    """bool (vocabulary,): the ids that occur most, and the row of those that never do."""
    counts = torch.bincount(model.to_row[torch.from_numpy(np.concatenate(c.ids)).long()], minlength=model.shape.vocabulary)
    counts[-1] = counts.max() + 1
    always = torch.zeros(len(counts), dtype=torch.bool)
    always[counts.topk(min(ALWAYS, len(counts))).indices] = True
    return always


@functools.cache
def bf16() -> bool:
    """Whether this CPU multiplies bfloat16 faster than float32 (measured: five times, on one core with avx512_bf16)."""
    try:
        return bool({"avx512_bf16", "amx_bf16"} & set(Path("/proc/cpuinfo").read_text().split()))
    except OSError:
        return False


def autocast():
    return torch.autocast("cpu", torch.bfloat16, enabled=bf16())


@torch.no_grad()
def held_out(model: Tied, c: Cut, length: int, most: int = 40) -> float:
    stream = np.concatenate([i for i, h in zip(c.ids, c.held_out) if h])
    n = max(1, min(most, (len(stream) - 1) // length) // 8) * 8
    ids = np.stack([stream[i * length : (i + 1) * length + 1] for i in range(n)])
    with autocast():
        return float(np.mean([loss_of(model, torch.from_numpy(b).long(), 0.0).item() for b in np.split(ids, range(8, n, 8))]))


def filled(source, ids: int) -> np.ndarray:
    """Rows of `source` until they hold so many ids together."""
    out = [next(source)]
    while (len(out) + 1) * (len(out[0]) - 1) <= ids:
        out.append(next(source))
    return np.stack(out)


def known_ids(c: Cut, tokenizer: Tokenizer) -> torch.Tensor:
    """Ids that occur, and those of single bytes and special tokens."""
    seen = np.unique(np.concatenate(c.ids))
    extra = [i for t, i in tokenizer.get_vocab().items() if (len(t) == 6 and t.startswith("<0x")) or i < 3]
    return torch.from_numpy(np.unique(np.concatenate([seen, extra]))).long()


def save(path: Path, model: Tied, muon, adam, spent: float, step: int) -> None:
    part = path.with_suffix(".part")
    torch.save({"model": model.state_dict(), "muon": muon.state_dict(), "adam": adam.state_dict(), "spent": spent, "step": step,
                "shape": asdict(model.shape)}, part)
    os.replace(part, path)


def train(a) -> None:
    torch.set_num_threads(1)
    a.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(a.tokenizer))
    bos, eos = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    c = cut(documents(a.texts), tokenizer, bos, eos)
    known, full = known_ids(c, tokenizer), tokenizer.get_vocab_size()
    written = written_cut(a.written, tokenizer, bos, eos) if a.written else None
    torch.manual_seed(0)
    shape = Shape(vocabulary=len(known) + 1, width=a.width, layers=a.layers, heads=a.width // 64, mlp=a.mlp, context=2048)
    model = Tied(shape, known, full)
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and n.startswith("layers")]
    others = [p for n, p in model.named_parameters() if not (p.ndim == 2 and n.startswith("layers"))]
    muon = Muon(matrices, weight_decay=a.decay)
    adam = torch.optim.AdamW(others, lr=1.0, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    spent, step = 0.0, 0
    saved = a.out / "checkpoint.pt"
    if saved.exists():
        k = torch.load(saved, weights_only=True)
        model.load_state_dict(k["model"]), muon.load_state_dict(k["muon"]), adam.load_state_dict(k["adam"])
        spent, step = k["spent"], k["step"]
    elif a.init:
        model.load_state_dict(torch.load(a.init / "checkpoint.pt", weights_only=True)["model"])
    if a.compile:
        for layer in model.layers:
            layer.compile()
    print(f"{sum(map(len, c.ids)):,} ids, {len(known):,} of {full:,} known, "
          f"{sum(p.numel() for p in model.parameters()):,} parameters, from step {step}", flush=True)
    rng = np.random.default_rng(1000 + step)
    first, last_ = rows(c, SHARES, a.length, rng), rows(c, LAST_SHARES, a.length * a.last_longer, rng)
    long = rows(c, LAST_SHARES, a.length * a.rows // 2, rng)
    own = rows(written, {}, a.length, rng) if written else None
    always = frequent(c, model)
    running, last, noted = 0.0, time.process_time(), time.process_time()
    while (progress := spent / (a.minutes * 60)) < 1:
        falling = progress > 1 - a.fall
        rate = min(1.0, (step + 1) / a.warm) * max(min(1.0, (1 - progress) / a.fall), 0.02)
        for o, lr in ((muon, a.lr), (adam, a.lr_embed)):
            for g in o.param_groups:
                g["lr"] = lr * rate
        for p in range(a.parts):
            source = own if own and rng.random() < a.own else first
            if source is first and falling:
                source = long if rng.random() < a.long else last_
            ids = torch.from_numpy(filled(source, a.length * a.rows // a.parts)).long()
            with autocast():
                loss = loss_of(model, ids, UNSEEN, None if progress > 1 - a.fall / 2 else always)
            (loss / a.parts).backward()
            running = 0.98 * running + 0.02 * loss.item() if step or p else loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with autocast():
            muon.step()
        adam.step()
        for o in (muon, adam):
            o.zero_grad()
        step += 1
        now = time.process_time()
        spent, last = spent + now - last, now
        if step % 50 == 0:
            print(f"{spent / 60:6.1f} min  step {step}  nats {running:.3f}  {spent / step:.2f} s/step  rate {rate:.2f}", flush=True)
        if now - noted > 240:
            print(f"{spent / 60:6.1f} min  HELD OUT {held_out(model, c, a.length):.4f}"
                  + (f"  own {held_out(model, written, a.length):.4f}" if written else ""), flush=True)
            save(saved, model, muon, adam, spent, step)
            noted = last = time.process_time()
    print("held out, all:", held_out(model, c, a.length, 10**9), flush=True)
    save(saved, model, muon, adam, spent, step)


def written_cut(path: Path, tokenizer: Tokenizer, bos: int, eos: int) -> Cut:
    """Texts a verifier wrote (`training/polish_written.py`). An id that is read and not learned, as it was there before, is −1 − id."""
    ids = []
    for line in lzma.open(path, "rt", encoding="utf-8"):
        begun, wrote = json.loads(line)
        e = tokenizer.encode(begun + wrote, add_special_tokens=False)
        learned = np.array([end > len(begun) for _, end in e.offsets], bool)
        row = np.array(e.ids, np.int32)
        ids.append(np.concatenate(([-1 - bos], np.where(learned, row, -1 - row))).astype(np.int32))
    return Cut(ids, ["written"] * len(ids), np.arange(len(ids)) % HELD_OUT == 7)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--texts", type=Path, required=True, help="folder of NAME.txt.xz")
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--init", type=Path, help="start from the checkpoint in this folder")
    p.add_argument("--written", type=Path, help="texts a verifier wrote")
    p.add_argument("--own", type=float, default=0.8, help="share of rows from --written")
    p.add_argument("--minutes", type=float, default=68, help="of processor time")
    p.add_argument("--width", type=int, default=256)
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--mlp", type=int, default=768)
    p.add_argument("--length", type=int, default=256)
    p.add_argument("--last-longer", type=int, default=2, help="rows this many times as long, and as many fewer, while the rate falls")
    p.add_argument("--long", type=float, default=0.05, help="share of steps with two very long rows, while the rate falls")
    p.add_argument("--rows", type=int, default=16, help="rows of --length ids a step")
    p.add_argument("--parts", type=int, default=1, help="backward passes a step")
    p.add_argument("--lr", type=float, default=4e-3)
    p.add_argument("--lr-embed", type=float, default=2e-3)
    p.add_argument("--decay", type=float, default=0.1, help="weight decay of the matrices")
    p.add_argument("--warm", type=int, default=60, help="steps of warm-up")
    p.add_argument("--fall", type=float, default=0.4, help="share of the time in which the rate falls")
    p.add_argument("--compile", action="store_true", help="fuse the layers' small steps (needs a C++ compiler)")
    train(p.parse_args())


if __name__ == "__main__":
    main()
