"""Filtering, drawing and judging on a torch device. Every backend has a module with these same names.

Rows are positions. Logits are float32 of shape (rows, width). Nothing here waits for the device, except where the
name says `to_host`. Sampling is by inverse transform: one uniform number picks one token, so a seed means the same
draws on every backend.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.trace import Sampling

NUCLEUS = (256, 4096)  # candidates a top-p filter looks at before it sorts the whole vocabulary
TOP = 5


class Distribution(NamedTuple):
    """Filtered probabilities. `ids` None: columns are ids. Else `ids` (rows, candidates) names each column."""

    probabilities: Tensor  # (rows, candidates), each row sums to 1
    ids: Tensor | None


class Proposal(NamedTuple):
    """Draft tokens of one round. q is zero outside `support`. A point mass has one candidate, the token itself."""

    ids: Tensor  # (k,)
    q: Tensor  # (k,) probability of each proposal under the distribution it was drawn from
    probabilities: Tensor  # (k, candidates)
    support: Tensor | None  # (k, candidates) ids of the columns; None: columns are ids


def ids_on_device(ids: Sequence[int], like: Tensor) -> Tensor:
    return torch.tensor(ids, dtype=torch.long, device=like.device)


def uniforms_on_device(uniform: Sequence[float], like: Tensor) -> Tensor:
    """Uploaded before a round's forwards are queued: an upload waits for whatever the device was given before."""
    return torch.tensor(uniform, dtype=torch.float32, device=like.device)


def copy(values: Tensor) -> Tensor:
    return values.clone()


def join(parts: Sequence[Tensor]) -> Tensor:
    """Arrays one after the other along their first axis."""
    return torch.cat(list(parts))


# ------------------------------------------------------------------------------------------------------- filtering


def penalise(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """Repetition penalty (Keskar et al. 2019): logits of `seen` tokens divided by it if positive, else multiplied."""
    seen = seen[..., : logits.shape[-1]]
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def nothing_seen(width: int, like: Tensor) -> Tensor:
    """(width + 1,): one mark an id. The last column stands for every id outside the width, which is never scored."""
    return torch.zeros(width + 1, dtype=torch.bool, device=like.device)


def mark(seen: Tensor, ids: Tensor) -> None:
    """Mark ids as seen, in place."""
    seen.index_fill_(0, ids.clamp(max=len(seen) - 1), True)


def seen_rows(seen: Tensor, ids: Tensor) -> Tensor:
    """(k+1, width + 1): what each position of a block has seen; row i adds the first i of its k proposals."""
    beyond = len(seen) - 1
    before = torch.ones(len(ids) + 1, len(ids), dtype=torch.bool, device=seen.device).tril(-1)
    columns = torch.where(before, ids.clamp(max=beyond), beyond)  # what still lies ahead marks the spare column
    return seen.repeat(len(ids) + 1, 1).scatter_(1, columns, True)


def filtered(logits: Tensor, s: Sampling) -> Distribution:
    """The distribution a token is drawn from: temperature, then top-k, top-p, min-p, as in transformers.

    Greedy is a point mass on the best token. A top-p filter first looks at the NUCLEUS best tokens: sorting a whole
    vocabulary costs more than a small draft's forward.
    """
    if s.greedy:
        best = logits.argmax(-1, keepdim=True)
        return Distribution(torch.ones_like(best, dtype=torch.float32), best)
    z = logits / s.temperature
    width = z.shape[-1]
    if not s.top_k and s.top_p >= 1:
        p = z.softmax(-1)
        if s.min_p:
            p = torch.where(p >= s.min_p * p.amax(-1, keepdim=True), p, 0.0)
            p = p / p.sum(-1, keepdim=True)
        return Distribution(p, None)
    if s.top_k:
        best, ids = best_of(z, min(s.top_k, width))
        p = best.softmax(-1)
    else:
        p, ids = _nucleus(z.softmax(-1), s.top_p)
    if s.top_p < 1:
        kept = p.cumsum(-1) - p < s.top_p
        kept[:, 0] = True  # also where so small a share is 0 in float32
        p = torch.where(kept, p, 0.0)
    if s.min_p:
        p = torch.where(p >= s.min_p * p[:, :1], p, 0.0)
    return Distribution(p / p.sum(-1, keepdim=True), ids)


def _nucleus(every: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Sorted probabilities and their ids, at least as many of each row as hold `mass`.

    On the CPU looking at a row's mass is free, and the few rows that need more than NUCLEUS candidates are looked at
    again; elsewhere looking would be a trip to the host, and sorting is fast.
    """
    width = every.shape[-1]
    if every.device.type != "cpu" or width <= NUCLEUS[0]:
        return every.sort(-1, descending=True)
    p, ids = best_of(every, NUCLEUS[0])
    for count in (*NUCLEUS[1:], width):
        short = (p.sum(-1) < mass).nonzero().view(-1)
        if not len(short) or p.shape[-1] == width:
            break
        missing = (0, min(count, width) - p.shape[-1])  # the other rows get candidates without probability
        p, ids = F.pad(p, missing), F.pad(ids, missing)
        p[short], ids[short] = every[short].topk(p.shape[-1])
    return p, ids


def best_of(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values of each row, sorted, and their columns.

    Two stages on the CPU: the best `count` values lie in the `count` blocks with the largest maxima, and finding
    these touches one value a block.
    """
    rows, width = values.shape
    block = 64 if count <= 16 else 8
    blocks = width // block
    if values.device.type != "cpu" or blocks < 2 * count or width % block:
        return values.topk(count)
    grid = values.view(rows, blocks, block)
    chosen = grid.amax(-1).topk(count, sorted=False).indices
    best, at = grid.gather(1, chosen[:, :, None].expand(-1, -1, block)).view(rows, -1).topk(count)
    return best, chosen.gather(1, at // block) * block + at % block


# --------------------------------------------------------------------------------------------------------- drawing


def pick(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Columns (rows,) drawn by inverse transform from unnormalised rows; `uniform` (rows,) lies in [0, 1)."""
    mass = probabilities.cumsum(-1)
    if mass.device.type != "cpu":
        # A parallel sum may round so that mass falls, or grows across a column of probability 0; neither may be drawn.
        mass = torch.where(probabilities > 0, mass, 0.0).cummax(-1).values
    total = mass[:, -1:]
    # Rounding must not push the target up to the total: no column's mass lies beyond it.
    target = (uniform[:, None] * total).minimum(total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(mass, target, right=True).squeeze(-1)


def draw(d: Distribution, uniform: Sequence[float] | Tensor) -> tuple[Tensor, Tensor]:
    """Ids (rows,) drawn, and their probabilities (rows,)."""
    if d.ids is not None and d.probabilities.shape[-1] == 1:
        return d.ids.view(-1), d.probabilities.view(-1)
    column = pick(d.probabilities, torch.as_tensor(uniform, dtype=d.probabilities.dtype, device=d.probabilities.device))[:, None]
    return (column if d.ids is None else d.ids.gather(1, column)).view(-1), d.probabilities.gather(1, column).view(-1)


def proposal(drawn: Sequence[tuple[Distribution, Tensor, Tensor]], support: Tensor | None, width: int) -> Proposal:
    """One round's draft: for each token (distribution, id (1,), q (1,)). `support` names a draft's columns."""
    ids, q = torch.cat([token for _, token, _ in drawn]), torch.cat([q for _, _, q in drawn])
    named = [(d.probabilities, d.ids if support is None else support[None] if d.ids is None else support[d.ids]) for d, _, _ in drawn]
    if len({(p.shape[-1], columns is None) for p, columns in named}) == 1:
        columns = None if named[0][1] is None else torch.cat([columns for _, columns in named])
        return Proposal(ids, q, torch.cat([p for p, _ in named]), columns)
    # A filter that kept another number of candidates for some rows: lay them all over the whole vocabulary.
    rows = [p.new_zeros(1, width).scatter_add_(1, torch.arange(p.shape[-1], device=p.device)[None] if columns is None else columns, p)
            for p, columns in named]
    return Proposal(ids, q, torch.cat(rows), None)


def point_masses(ids: Sequence[int], like: Tensor) -> Proposal:
    """Looked-up or translated tokens: each proposed with probability 1."""
    tokens = ids_on_device(ids, like)
    ones = torch.ones(len(ids), device=like.device)
    return Proposal(tokens, ones, ones[:, None], tokens[:, None])


# --------------------------------------------------------------------------------------------------------- judging


def probability_of(d: Distribution, ids: Tensor) -> Tensor:
    """Probability (rows,) of one id a row."""
    if d.ids is None:
        return d.probabilities.gather(1, ids[:, None]).squeeze(1)
    return torch.where(d.ids == ids[:, None], d.probabilities, 0.0).sum(-1)


def judge_to_host(p: Distribution, proposal: Proposal | None, uniform: Sequence[float], width: int):
    """Speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023) in one trip to the host.

    p: the verifier's distribution at the k+1 positions; uniform: k draws that judge, and one for the closing token.
    Proposal i is kept with probability min(1, p/q). At the first that is not, the closing token is drawn from the
    residual max(0, p − q), normalised, over the whole vocabulary; after a clean sweep from the last row of p.
    Returns (accepted, closing id, proposed ids, p of each, q of each). Greedy is the same rule with point masses.
    """
    u = torch.tensor(uniform, dtype=p.probabilities.dtype, device=p.probabilities.device)
    if proposal is None:
        column = pick(p.probabilities[:1], u[-1:]) if p.probabilities.shape[-1] > 1 else u.new_zeros(1, dtype=torch.long)
        closing = column if p.ids is None else p.ids[:1].gather(1, column[:, None]).view(-1)
        return 0, int(closing), [], [], []
    k = len(proposal.ids)
    first = Distribution(p.probabilities[:k], None if p.ids is None else p.ids[:k])
    p_at = probability_of(first, proposal.ids)
    kept = u[:k] * proposal.q < p_at
    accepted = kept.long().cumprod(0).sum().view(1)
    p_row = p.probabilities.index_select(0, accepted)
    at = accepted.clamp(max=k - 1)
    q_row = proposal.probabilities.index_select(0, at) * (accepted < k)
    if proposal.support is not None or proposal.probabilities.shape[-1] != width:
        columns = torch.arange(q_row.shape[-1], device=q_row.device)[None] if proposal.support is None else proposal.support.index_select(0, at)
        q_row = q_row.new_zeros(1, width).scatter_add_(1, columns, q_row)  # a candidate without probability may repeat an id
    ids = None if p.ids is None else p.ids.index_select(0, accepted)
    residual = (p_row - (q_row if ids is None else q_row.gather(1, ids))).clamp(min=0)
    # p = q to the last bit leaves no residual; a rejection is then a rounding accident of measure zero.
    residual = torch.where(residual.sum() > 0, residual, p_row)
    column = pick(residual, u[-1:])
    closing = column if ids is None else ids.gather(1, column[:, None]).view(-1)
    # float64 would be exact for any id; float32 is exact below 2**24, and MPS has no float64.
    packed = torch.cat([accepted.float(), closing.float(), proposal.ids.float(), p_at, proposal.q]).tolist()
    return int(packed[0]), int(packed[1]), [int(i) for i in packed[2 : 2 + k]], packed[2 + k : 2 + 2 * k], packed[2 + 2 * k :]


# ------------------------------------------------------------------------------------------------------ statistics


def entropy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Entropy in bits (rows,) of the raw softmax, and the log of its normaliser (rows,). −inf logits are allowed.

    H = −ln p_max − Σ p·(z − z_max): of differences, so that large logits cost no digits.
    """
    logits = logits.float()  # half precision has no room for the floor below
    top, p = logits.amax(-1, keepdim=True), logits.softmax(-1)
    log_best = p.amax(-1).log()
    below = (logits - top).clamp(min=-1e30)  # p is 0 where z is −inf, and 0 · inf would be NaN
    return ((0.0 - log_best - torch.linalg.vecdot(p, below)) / math.log(2)).clamp(min=0.0), top.squeeze(-1) - log_best


def distribution_entropy(d: Distribution) -> Tensor:
    """Entropy in bits (rows,) of filtered distributions; 0 where one token has it all."""
    p = d.probabilities
    return (0.0 - (p * p.clamp(min=1e-30).log2()).sum(-1)).clamp(min=0.0)  # of p = 0 the product is 0, not NaN


def probability(logits: Tensor, log_total: Tensor, ids: Tensor) -> Tensor:
    """Raw softmax probability (rows,) of one id a row."""
    return (logits.gather(1, ids[:, None]).squeeze(1) - log_total).exp()


def statistics(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """What the trace keeps of each emitted position, as (rows, 2 + 2·TOP): entropy in bits, probability of the
    emitted id, the TOP best ids and their probabilities; all of the raw softmax."""
    bits, log_total = entropy(logits)
    best, columns = best_of(logits, min(TOP, logits.shape[-1]))
    chosen = probability(logits, log_total, ids_on_device(ids, logits))
    return torch.cat([bits[:, None], chosen[:, None], columns.float(), (best - log_total[:, None]).exp()], 1)


def to_host(values: Tensor) -> list:
    return values.tolist()
