"""Filtering, drawing and judging in MLX. The same names, shapes and draws as `engine.numerics.torch`.

Arrays are lazy: a step is put down when it is called and worked out when something asks for its value. Nothing here
asks, except where the name says `to_host`, and on the CPU a top-p filter. Ids are int32. A gather is not checked
against its bounds, so no index past the end may reach one.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

import mlx.core as mx

from engine.trace import Sampling

NUCLEUS = (256, 4096)  # candidates a top-p filter looks at before it sorts the whole vocabulary
TOP = 5


class Distribution(NamedTuple):
    """Filtered probabilities. `ids` None: columns are ids. Else `ids` (rows, candidates) names each column."""

    probabilities: mx.array  # (rows, candidates), each row sums to 1
    ids: mx.array | None


class Proposal(NamedTuple):
    """Draft tokens of one round. q is zero outside `support`. A point mass has one candidate, the token itself."""

    ids: mx.array  # (k,)
    q: mx.array  # (k,) probability of each proposal under the distribution it was drawn from
    probabilities: mx.array  # (k, candidates)
    support: mx.array | None  # (k, candidates) ids of the columns; None: columns are ids


def ids_on_device(ids: Sequence[int], like: mx.array) -> mx.array:
    return mx.array(list(ids), dtype=mx.int32)


def uniforms_on_device(uniform: Sequence[float], like: mx.array) -> mx.array:
    return mx.array(list(uniform), dtype=mx.float32)


def copy(values: mx.array) -> mx.array:
    return mx.array(values)


def join(parts: Sequence[mx.array]) -> mx.array:
    """Arrays one after the other along their first axis."""
    return mx.concatenate(list(parts))


# ------------------------------------------------------------------------------------------------------- filtering


def penalise(logits: mx.array, seen: mx.array, penalty: float) -> mx.array:
    """Repetition penalty (Keskar et al. 2019): logits of `seen` tokens divided by it if positive, else multiplied."""
    return mx.where(seen[..., : logits.shape[-1]], mx.where(logits > 0, logits / penalty, logits * penalty), logits)


def nothing_seen(width: int, like: mx.array) -> mx.array:
    """(width + 1,): one mark an id. The last column stands for every id outside the width, which is never scored."""
    return mx.zeros(width + 1, dtype=mx.bool_)


def mark(seen: mx.array, ids: mx.array) -> None:
    """Mark ids as seen, in place."""
    if len(ids):
        seen[mx.minimum(ids, len(seen) - 1)] = True


def seen_rows(seen: mx.array, ids: mx.array) -> mx.array:
    """(k+1, width + 1): what each position of a block has seen; row i adds the first i of its k proposals."""
    beyond, k = len(seen) - 1, len(ids)
    before = mx.arange(k + 1)[:, None] > mx.arange(k)[None]
    columns = mx.where(before, mx.minimum(ids, beyond)[None], beyond)  # what still lies ahead marks the spare column
    return mx.put_along_axis(mx.repeat(seen[None], k + 1, 0), columns, mx.ones_like(columns).astype(mx.bool_), 1)


def filtered(logits: mx.array, s: Sampling) -> Distribution:
    """The distribution a token is drawn from: temperature, then top-k, top-p, min-p, as in transformers.

    Greedy is a point mass on the best token.
    """
    if s.greedy:
        best = mx.argmax(logits, -1, keepdims=True).astype(mx.int32)
        return Distribution(mx.ones(best.shape), best)
    z = logits / s.temperature
    width = z.shape[-1]
    if not s.top_k and s.top_p >= 1:
        p = mx.softmax(z, -1)
        if s.min_p:
            p = mx.where(p >= s.min_p * p.max(-1, keepdims=True), p, 0.0)
            p = p / p.sum(-1, keepdims=True)
        return Distribution(p, None)
    if s.top_k:
        best, ids = best_of(z, min(s.top_k, width))
        p = mx.softmax(best, -1)
    else:
        p, ids = _nucleus(mx.softmax(z, -1), s.top_p)
    if s.top_p < 1:
        kept = (mx.cumsum(p, -1) - p < s.top_p) | (mx.arange(p.shape[-1]) == 0)  # the best is kept always: a tiny share is 0 in float32
        p = mx.where(kept, p, 0.0)
    if s.min_p:
        p = mx.where(p >= s.min_p * p[:, :1], p, 0.0)
    return Distribution(p / p.sum(-1, keepdims=True), ids)


def _nucleus(every: mx.array, mass: float) -> tuple[mx.array, mx.array]:
    """Sorted probabilities and their ids, at least as many as hold `mass` in every row.

    On the CPU sorting a vocabulary costs more than looking at the mass of the best few; elsewhere looking would be a
    trip to the host, and sorting is fast.
    """
    width = every.shape[-1]
    if _on_cpu():
        for count in NUCLEUS:
            if count >= width:
                break
            p, ids = best_of(every, count)
            if (p.sum(-1) >= mass).all().item():
                return p, ids
    return best_of(every, width)


def best_of(values: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """The `count` largest values of each row, sorted, and their columns.

    Two stages: the best `count` values lie in the `count` blocks with the largest maxima, and finding these touches one
    value a block.
    """
    rows, width = values.shape
    block = 64 if count <= 16 else 8
    blocks = width // block
    if blocks < 2 * count or width % block:
        columns = _largest(values, count)
    else:
        chosen = _largest(values.reshape(rows, blocks, block).max(-1), count)
        columns = (chosen[:, :, None] * block + mx.arange(block)[None, None]).reshape(rows, -1)
        columns = mx.take_along_axis(columns, _largest(mx.take_along_axis(values, columns, 1), count), 1)
    best = mx.take_along_axis(values, columns, 1)
    order = mx.argsort(-best, -1)
    return mx.take_along_axis(best, order, 1), mx.take_along_axis(columns, order, 1).astype(mx.int32)


def _largest(values: mx.array, count: int) -> mx.array:
    """Columns of the `count` largest values of each row, in no order."""
    if count >= values.shape[-1]:
        return mx.broadcast_to(mx.arange(values.shape[-1])[None], values.shape)
    return mx.argpartition(-values, count - 1, -1)[:, :count].astype(mx.int32)


# --------------------------------------------------------------------------------------------------------- drawing


def pick(probabilities: mx.array, uniform: mx.array) -> mx.array:
    """Columns (rows,) drawn by inverse transform from unnormalised rows; `uniform` (rows,) lies in [0, 1)."""
    mass = mx.cumsum(probabilities, -1)
    if not _on_cpu():
        # A parallel sum may round so that mass falls, or grows across a column of probability 0; neither may be drawn.
        mass = mx.cummax(mx.where(probabilities > 0, mass, 0.0), -1)
    total = mass[:, -1:]
    # Rounding must not push the target up to the total: no column's mass lies beyond it. The bits of a positive float
    # less one are the next smaller float.
    below = mx.maximum(total.view(mx.int32) - 1, 0).view(mx.float32)
    target = mx.minimum(uniform[:, None] * total, below)
    return (mass <= target).sum(-1).astype(mx.int32)


def draw(d: Distribution, uniform: Sequence[float] | mx.array) -> tuple[mx.array, mx.array]:
    """Ids (rows,) drawn, and their probabilities (rows,)."""
    if d.ids is not None and d.probabilities.shape[-1] == 1:
        return d.ids.reshape(-1), d.probabilities.reshape(-1)
    if not isinstance(uniform, mx.array):
        uniform = uniforms_on_device(uniform, d.probabilities)
    column = pick(d.probabilities, uniform)[:, None]
    ids = column if d.ids is None else mx.take_along_axis(d.ids, column, 1)
    return ids.reshape(-1), mx.take_along_axis(d.probabilities, column, 1).reshape(-1)


def proposal(drawn: Sequence[tuple[Distribution, mx.array, mx.array]], support: mx.array | None, width: int) -> Proposal:
    """One round's draft: for each token (distribution, id (1,), q (1,)). `support` names a draft's columns."""
    ids, q = mx.concatenate([token for _, token, _ in drawn]), mx.concatenate([q for _, _, q in drawn])
    named = [(d.probabilities, d.ids if support is None else support[None] if d.ids is None else support[d.ids]) for d, _, _ in drawn]
    if len({(p.shape[-1], columns is None) for p, columns in named}) == 1:
        columns = None if named[0][1] is None else mx.concatenate([columns for _, columns in named])
        return Proposal(ids, q, mx.concatenate([p for p, _ in named]), columns)
    # A filter that kept another number of candidates for some rows: lay them all over the whole vocabulary.
    return Proposal(ids, q, mx.concatenate([over_all(p, columns, width) for p, columns in named]), None)


def over_all(p: mx.array, columns: mx.array | None, width: int) -> mx.array:
    """One row (1, candidates) laid over the whole vocabulary, (1, width). A candidate without probability may repeat an id."""
    if columns is None:
        columns = mx.arange(p.shape[-1])[None]
    return mx.zeros(width).at[columns[0]].add(p[0])[None]


def point_masses(ids: Sequence[int], like: mx.array) -> Proposal:
    """Looked-up or translated tokens: each proposed with probability 1."""
    tokens, ones = ids_on_device(ids, like), mx.ones(len(ids))
    return Proposal(tokens, ones, ones[:, None], tokens[:, None])


# --------------------------------------------------------------------------------------------------------- judging


def probability_of(d: Distribution, ids: mx.array) -> mx.array:
    """Probability (rows,) of one id a row."""
    if d.ids is None:
        return mx.take_along_axis(d.probabilities, ids[:, None], 1)[:, 0]
    return mx.where(d.ids == ids[:, None], d.probabilities, 0.0).sum(-1)


def judge_to_host(p: Distribution, proposal: Proposal | None, uniform: Sequence[float], width: int):
    """Speculative sampling (Leviathan et al. 2023, algorithm 1; Chen et al. 2023) in one trip to the host.

    p: the verifier's distribution at the k+1 positions; uniform: k draws that judge, and one for the closing token.
    Proposal i is kept with probability min(1, p/q). At the first that is not, the closing token is drawn from the
    residual max(0, p − q), normalised, over the whole vocabulary; after a clean sweep from the last row of p.
    Returns (accepted, closing id, proposed ids, p of each, q of each). Greedy is the same rule with point masses.
    """
    u = uniforms_on_device(uniform, p.probabilities)
    if proposal is None:
        closing, _ = draw(Distribution(p.probabilities[:1], None if p.ids is None else p.ids[:1]), u[-1:])
        return 0, int(closing.item()), [], [], []
    k = len(proposal.ids)
    first = Distribution(p.probabilities[:k], None if p.ids is None else p.ids[:k])
    p_at = probability_of(first, proposal.ids)
    kept = u[:k] * proposal.q < p_at
    accepted = mx.cumprod(kept.astype(mx.int32), 0).sum()[None]
    p_row = p.probabilities[accepted]
    at = mx.minimum(accepted, k - 1)
    q_row = proposal.probabilities[at] * (accepted < k)
    if proposal.support is not None or proposal.probabilities.shape[-1] != width:
        q_row = over_all(q_row, None if proposal.support is None else proposal.support[at], width)
    ids = None if p.ids is None else p.ids[accepted]
    residual = mx.maximum(p_row - (q_row if ids is None else mx.take_along_axis(q_row, ids, 1)), 0.0)
    # p = q to the last bit leaves no residual; a rejection is then a rounding accident of measure zero.
    residual = mx.where(residual.sum() > 0, residual, p_row)
    column = pick(residual, u[-1:])[:, None]
    closing = (column if ids is None else mx.take_along_axis(ids, column, 1)).reshape(-1)
    # float32 is exact for ids below 2**24.
    packed = mx.concatenate([v.astype(mx.float32) for v in (accepted, closing, proposal.ids, p_at, proposal.q)]).tolist()
    return int(packed[0]), int(packed[1]), [int(i) for i in packed[2 : 2 + k]], packed[2 + k : 2 + 2 * k], packed[2 + 2 * k :]


# ------------------------------------------------------------------------------------------------------ statistics


def entropy(logits: mx.array) -> tuple[mx.array, mx.array]:
    """Entropy in bits (rows,) of the raw softmax, and the log of its normaliser (rows,). −inf logits are allowed.

    H = −ln p_max − Σ p·(z − z_max): of differences, so that large logits cost no digits.
    """
    logits = logits.astype(mx.float32)  # half precision has no room for the floor below
    top, p = logits.max(-1, keepdims=True), mx.softmax(logits, -1)
    log_best = mx.log(p.max(-1))
    below = mx.maximum(logits - top, -1e30)  # p is 0 where z is −inf, and 0 · inf would be NaN
    return mx.maximum((0.0 - log_best - (p * below).sum(-1)) / math.log(2), 0.0), top[:, 0] - log_best


def distribution_entropy(d: Distribution) -> mx.array:
    """Entropy in bits (rows,) of filtered distributions; 0 where one token has it all."""
    p = d.probabilities
    return mx.maximum(0.0 - (p * mx.log2(mx.maximum(p, 1e-30))).sum(-1), 0.0)  # of p = 0 the product is 0, not NaN


def probability(logits: mx.array, log_total: mx.array, ids: mx.array) -> mx.array:
    """Raw softmax probability (rows,) of one id a row."""
    return mx.exp(mx.take_along_axis(logits, ids[:, None], 1)[:, 0] - log_total)


def statistics(logits: mx.array, ids: Sequence[int]) -> mx.array:
    """What the trace keeps of each emitted position, as (rows, 2 + 2·TOP): entropy in bits, probability of the
    emitted id, the TOP best ids and their probabilities; all of the raw softmax."""
    bits, log_total = entropy(logits)
    best, columns = best_of(logits, min(TOP, logits.shape[-1]))
    chosen = probability(logits, log_total, ids_on_device(ids, logits))
    return mx.concatenate([bits[:, None], chosen[:, None], columns.astype(mx.float32), mx.exp(best - log_total[:, None])], 1)


def to_host(values: mx.array) -> list:
    return values.tolist()


def _on_cpu() -> bool:
    return mx.default_device().type == mx.cpu
