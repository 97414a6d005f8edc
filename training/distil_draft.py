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

import argparse
import json
import math
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

TEMPERATURE = 0.7
LONGEST = 16  # longest match the copy head tells apart
HELD_OUT = 0.03  # share of distinct prompts never trained on


@dataclass(frozen=True)
class Shape:
    """The draft's size. `heads × head` is the attention width."""

    vocabulary: int = 8192
    width: int = 320
    layers: int = 3
    heads: int = 5
    head: int = 64
    mlp: int = 896
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    context: int = 8192


class Layer(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.shape = s
        inner = s.heads * s.head
        self.norm1, self.norm2 = nn.Parameter(torch.ones(s.width)), nn.Parameter(torch.ones(s.width))
        self.qkv = nn.Linear(s.width, 3 * inner, bias=False)
        self.o = nn.Linear(inner, s.width, bias=False)
        self.gate_up = nn.Linear(s.width, 2 * s.mlp, bias=False)
        self.down = nn.Linear(s.mlp, s.width, bias=False)

    def forward(self, x, cos, sin):
        s, (b, t, _) = self.shape, x.shape
        q, k, v = self.qkv(F.rms_norm(x, (s.width,), self.norm1, s.norm_eps)).view(b, t, 3, s.heads, s.head).permute(2, 0, 3, 1, 4)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, t, -1))
        gate, up = self.gate_up(F.rms_norm(x, (s.width,), self.norm2, s.norm_eps)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def rotate(x, cos, sin):
    """Rotary position embedding in the half-split convention of Llama checkpoints."""
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Draft(nn.Module):
    def __init__(self, s: Shape):
        super().__init__()
        self.shape = s
        self.embed = nn.Embedding(s.vocabulary, s.width)
        self.layers = nn.ModuleList(Layer(s) for _ in range(s.layers))
        self.norm = nn.Parameter(torch.ones(s.width))
        self.head = nn.Linear(s.width, s.vocabulary, bias=False)
        self.gate = nn.Parameter(torch.linspace(-3.0, 2.0, LONGEST + 1))  # logit of λ by length of the match
        for layer in self.layers:
            for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
                nn.init.normal_(linear.weight, std=linear.in_features**-0.5)
            layer.o.weight.data.mul_(0.3)
            layer.down.weight.data.mul_(0.3)

    def hidden(self, ids):
        t = ids.shape[1]
        inverse = self.shape.rope_theta ** (-torch.arange(0, self.shape.head, 2).float() / self.shape.head)
        angle = torch.outer(torch.arange(t).float(), inverse)
        cos, sin = torch.cat((angle, angle), -1).cos(), torch.cat((angle, angle), -1).sin()
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.rms_norm(x, (self.shape.width,), self.norm, self.shape.norm_eps)

    def start_from(self, teacher_embedding):
        """Start from the teacher's (tied) embedding, projected to the draft's width by its principal directions."""
        centred = teacher_embedding - teacher_embedding.mean(0)
        _, _, v = torch.linalg.svd(centred, full_matrices=False)
        projected = teacher_embedding @ v[: self.shape.width].T
        self.embed.weight.data.copy_(projected / projected.std())
        self.head.weight.data.copy_(projected / projected.std() * self.shape.width**-0.5)


# ---------------------------------------------------------------------------------------------------------- data


@dataclass
class Samples:
    """The teacher's conversations, in draft ids. `top_ids`, `top_p` are (answer tokens, 10) at TEMPERATURE."""

    ids: list
    first_answer: np.ndarray
    answer_start: np.ndarray
    top_ids: np.ndarray
    top_p: np.ndarray
    held_out: np.ndarray
    to_verifier: np.ndarray
    copy_id: np.ndarray  # what followed the longest, then latest match of the context's end
    copy_length: np.ndarray  # length of that match, up to LONGEST; 0: none


def load(path: Path, vocabulary: int, extra_ids: np.ndarray) -> Samples:
    """Read the samples and choose the draft's vocabulary.

    The vocabulary is the `vocabulary` ids with the largest mass in the teacher's soft labels, and the ids in
    `extra_ids` (chat marks, single bytes) come first. A context token outside it is read as the id UNKNOWN = the
    least likely id of the vocabulary, which is thereby given up as an output... see `model card`.
    """
    with np.load(path) as npz:
        d = {name: npz[name] for name in npz}  # each look into an npz unpacks it anew
    prompt_ends, answer_ends = d["prompt_lengths"].cumsum(), d["answer_lengths"].cumsum()
    logp = d["top_logprobs"].astype(np.float32) / TEMPERATURE
    p = np.exp(logp - logp.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    mass = np.bincount(d["top_ids"].ravel(), weights=p.ravel(), minlength=65536)
    mass += 0.05 * np.bincount(d["prompt_ids"], minlength=65536)
    mass[extra_ids] = mass.max() * 2
    to_verifier = np.sort(np.argsort(-mass, kind="stable")[: vocabulary - 1])
    to_draft = np.full(65536, vocabulary - 1, np.int64)  # the last draft id stands for every token outside
    to_draft[to_verifier] = np.arange(vocabulary - 1)
    prompts, answers = to_draft[d["prompt_ids"]], to_draft[d["answer_ids"]]
    ids, first, seen, keys = [], [], {}, []
    for i, (pe, ae) in enumerate(zip(prompt_ends, answer_ends)):
        raw = d["prompt_ids"][pe - d["prompt_lengths"][i] : pe]
        keys.append(seen.setdefault(raw.tobytes(), len(seen)))
        ids.append(np.concatenate((prompts[pe - d["prompt_lengths"][i] : pe], answers[ae - d["answer_lengths"][i] : ae])))
        first.append(d["prompt_lengths"][i])
    held = np.random.default_rng(7).random(len(seen)) < HELD_OUT
    outside = to_draft[d["top_ids"]] == vocabulary - 1
    first = np.array(first)
    copy_id, copy_length = zip(*(matches(row, start, vocabulary - 1) for row, start in zip(ids, first)))
    return Samples(ids, first, answer_ends - d["answer_lengths"], to_draft[d["top_ids"]],
                   np.where(outside, 0, p).astype(np.float32), held[np.array(keys)], to_verifier,
                   np.concatenate(copy_id), np.concatenate(copy_length))


def matches(row: np.ndarray, start: int, other: int) -> tuple[np.ndarray, np.ndarray]:
    """For every position t ≥ start of `row`: the token that the copy head proposes there, and its match's length."""
    n = len(row)
    same = row[:, None] == row[None, :]
    run = np.zeros((n + 1, n + 1), np.int64)  # run[i, j]: common suffix of row[:i] and row[:j]
    for k in range(1, n + 1):
        run[k, 1:] = np.where(same[k - 1], run[k - 1, :-1] + 1, 0)
    ids, lengths = np.zeros(n - start, np.int64), np.zeros(n - start, np.int64)
    for t in range(start, n):
        found = np.minimum(run[t, 1:t], LONGEST)  # a match that ends at j is followed by row[j]; j < t
        found = np.where(row[1:t] == other, 0, found)
        if len(found) and found.max():
            j = len(found) - 1 - found[::-1].argmax()  # the latest of the longest
            ids[t - start], lengths[t - start] = row[1 + j], found[j]
    return ids, lengths


def batches(s: Samples, rank: int, world: int, tokens: int, rng: np.random.Generator):
    """Endless batches of about `tokens` tokens. Some rows hold several conversations, so long contexts are seen."""
    rows = np.flatnonzero(~s.held_out)
    while True:
        order = rng.permutation(rows)
        packs, at = [], 0
        while at < len(order):
            k = int(rng.choice([1, 2, 4], p=[0.75, 0.2, 0.05]))
            packs.append(order[at : at + k])
            at += k
        lengths = np.array([sum(len(s.ids[i]) for i in pack) for pack in packs])
        by_length = np.argsort(lengths + rng.normal(0, 10, len(packs)), kind="stable")
        groups, group = [], []
        for j in by_length:
            if group and (len(group) + 1) * max(lengths[j], lengths[group].max()) > tokens:
                groups.append([packs[g] for g in group])
                group = []
            group.append(j)
        rng.shuffle(groups)
        for g in range(rank, len(groups) - world + 1, world):
            yield assemble(s, groups[g])


def assemble(s: Samples, packs):
    width = max(sum(len(s.ids[i]) for i in pack) for pack in packs)
    ids = np.zeros((len(packs), width), np.int64)
    where, answer = [], []
    for r, pack in enumerate(packs):
        at = 0
        for i in pack:
            n, first = len(s.ids[i]), s.first_answer[i]
            ids[r, at : at + n] = s.ids[i]
            where.append(r * width + at + np.arange(first - 1, n - 1))
            answer.append(s.answer_start[i] + np.arange(n - first))
            at += n
    where, answer = np.concatenate(where), np.concatenate(answer)
    return tuple(torch.from_numpy(a) for a in (
        ids, where, s.top_ids[answer], s.top_p[answer], s.copy_id[answer], s.copy_length[answer]))


# ------------------------------------------------------------------------------------------------------ training


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal by Newton-Schulz steps (Jordan et al. 2024), in float32.

    torch.optim.Muon computes in bfloat16, which CPUs without bfloat16 units do forty times more slowly.
    The update is scaled to the size of an AdamW update (Liu et al. 2025).
    """

    def __init__(self, matrices, momentum=0.95, weight_decay=0.05):
        super().__init__(matrices, {"lr": 0.0, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                velocity = state.setdefault("velocity", torch.zeros_like(p))
                velocity.lerp_(p.grad, 1 - group["momentum"])
                x = p.grad.lerp(velocity, group["momentum"])  # Nesterov
                tall = x.shape[0] > x.shape[1]
                x = (x.T if tall else x) / (x.norm() + 1e-7)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(x.T if tall else x, alpha=-group["lr"] * 0.2 * max(p.shape) ** 0.5)


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
    from safetensors import safe_open

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
    while spent < a.minutes * 60:
        progress = spent / (a.minutes * 60)
        if world > 1:  # one clock for all processes
            clock = torch.tensor([progress])
            dist.broadcast(clock, 0)
            progress = clock.item()
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
            print(f"{spent/60:6.1f} min  step {step}  train ce {running[0]/fix:.3f}  overlap {running[1]/fix:.4f}  {spent/step:.2f} s/step", flush=True)
        if rank == 0 and (now - noted > 300 or progress > 0.999):
            noted = now
            ce_, ov_ = evaluate(model, s)
            print(f"{spent/60:6.1f} min  HELD OUT ce {ce_:.3f}  alpha {ov_:.4f}  gates {model.gate.sigmoid().detach().numpy().round(2)[1:]}", flush=True)
            part = saved.with_suffix(".part")
            torch.save({"model": model.state_dict(), "muon": muon.state_dict(), "adam": adam.state_dict(), "spent": spent, "step": step, "shape": asdict(shape), "to_verifier": torch.from_numpy(s.to_verifier)}, part)
            os.replace(part, saved)
            last = time.monotonic()
    if rank == 0:
        print("held out, all:", evaluate(model, s, most=10**9), flush=True)
        part = saved.with_suffix(".part")
        torch.save({"model": model.state_dict(), "muon": muon.state_dict(), "adam": adam.state_dict(), "spent": spent, "step": step, "shape": asdict(shape), "to_verifier": torch.from_numpy(s.to_verifier)}, part)
        os.replace(part, saved)


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
    from tokenizers import Tokenizer

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
