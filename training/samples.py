"""The teacher's conversations in the draft's ids, with what the copy head would propose, in batches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

import numpy as np
import torch

from training.network import LONGEST

TEMPERATURE = 0.7  # the draft learns the teacher's distribution at this temperature
HELD_OUT = 0.03  # share of distinct prompts never trained on


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

    It is `extra_ids` (chat marks, single bytes) and the ids with the largest mass in the teacher's soft labels. The
    last draft id stands for every token outside: the draft reads it, and never proposes it.
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


def batches(s: Samples, rank: int, world: int, tokens: int, rng: np.random.Generator) -> Iterator[tuple]:
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


def assemble(s: Samples, packs) -> tuple:
    """Padded ids (rows, width), and for every answer token: the flat position that predicts it, its soft label, its copy."""
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
