"""The bundled Polish models: bits per byte, and how many of a draft's candidates the verifier keeps.

    python -m bench.polish_models --essays ../shared/data/polish/essays_eval.txt
    python -m bench.polish_models --drafts bundled:polish-draft --tokens 96

Bits per byte: −log2 of the probability of every token of the file over the bytes of the file. The window moves by half its length, so
that every token but the first of the file has at least that much before it.

Acceptance, over the three genres of Polish prompts that come with the program, is measured by a small evaluator of its own, not by
the engine's, so that one can be held against the other: the draft continues the committed text greedily by k of its tokens; the last
five committed tokens' text and the draft's are encoded together by the verifier's tokenizer and cut at the byte where the committed
text ends (`context`), or the draft's text is encoded alone (`naive`); candidates count as kept up to the first that is not the
verifier's own greedy choice.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, DynamicCache

from engine.models import bundled
from engine.models.torch_model import cache_keyword
from engine.prompt_sets.ready import builtin

PREFIX = 5  # committed tokens the translation sees


@dataclass(frozen=True)
class Model:
    name: str
    tokenizer: Tokenizer  # without the dummy space that some put before a text: it belongs to the start, not to every piece
    alone: Tokenizer  # as it is
    net: torch.nn.Module
    bos: int
    eos: int
    pieces: list[bytes]  # the bytes of every id


def load(name: str) -> Model:
    """A bundled model or a folder, in float32."""
    folder = bundled.ready(bundled.entry(name)) if name.startswith(bundled.PREFIX) else Path(name)
    raw = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    raw["post_processor"] = None
    alone = Tokenizer.from_str(json.dumps(raw))
    if (raw.get("normalizer") or {}).get("type") == "Sequence":
        raw["normalizer"]["normalizers"] = [n for n in raw["normalizer"]["normalizers"] if n["type"] != "Prepend"]
    t = Tokenizer.from_str(json.dumps(raw))
    net = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    pieces = [piece_bytes(t.id_to_token(i), raw["decoder"]["type"] == "ByteLevel") for i in range(t.get_vocab_size())]
    return Model(name, t, alone, net, t.token_to_id("<s>"), t.token_to_id("</s>"), pieces)


def byte_letters() -> dict[str, int]:
    """The letters that stand for bytes in byte-level BPE (GPT-2): printable ones for themselves, others from 256 up."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


LETTERS = byte_letters()


def piece_bytes(piece: str, byte_level: bool) -> bytes:
    if piece in ("<s>", "</s>", "<unk>"):
        return b""
    if byte_level:
        return bytes(LETTERS[x] for x in piece)
    if len(piece) == 6 and piece.startswith("<0x"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()


@torch.inference_mode()
def bits_per_byte(m: Model, text: str, window: int = 512) -> tuple[float, int]:
    """(bits per byte, tokens). The file's first token is predicted from the begin token."""
    start = " " if m.tokenizer.normalizer is not None else ""  # the dummy space a SentencePiece tokenizer puts first
    ids = [m.bos, *m.tokenizer.encode(start + text).ids]
    nats, at = 0.0, 1
    while at < len(ids):
        begin = max(0, at - window // 2)
        end = min(len(ids), begin + window)
        logp = m.net(torch.tensor([ids[begin:end]])).logits[0, at - begin - 1 : -1].log_softmax(-1)
        nats -= logp.gather(1, torch.tensor(ids[at:end])[:, None]).sum().item()
        at = end
    return nats / math.log(2) / len(text.encode()), len(ids) - 1


def text_of(m: Model, ids: list[int]) -> bytes:
    return b"".join(m.pieces[i] for i in ids)


@torch.inference_mode()
def greedy(m: Model, ids: list[int], count: int) -> list[int]:
    """Up to `count` ids, the end token included."""
    out, cache, feed = [], {cache_keyword(m.net): DynamicCache()}, torch.tensor([ids])
    while len(out) < count and m.eos not in out:
        feed = m.net(feed, use_cache=True, logits_to_keep=1, **cache).logits[:, -1].argmax(-1, keepdim=True)
        out.append(int(feed))
    return out


def translated(v: Model, committed: list[int], said: bytes, strategy: str) -> list[int]:
    """The draft's text as ids of the verifier; none if the cut does not fall where the committed text ends."""
    said_text = said.decode("utf-8", errors="ignore")
    if strategy == "naive":
        return v.alone.encode(said_text).ids if said_text else []
    before = text_of(v, committed[-PREFIX:])
    whole = before.decode("utf-8", errors="ignore")
    if len(whole.encode()) != len(before):  # part of a letter is committed: take more of it, or leave this round to the verifier
        return []
    at, ids = 0, v.tokenizer.encode(whole + said_text).ids
    for i, token in enumerate(ids):
        if at == len(before):
            return ids[i:]
        at += len(v.pieces[token])
    return []


@dataclass(frozen=True)
class Kept:
    accepted: int
    proposed: int
    passes: int
    tokens: int


def kept(v: Model, d: Model, prompt: list[int], answer: list[int], gamma: int, strategy: str) -> Kept:
    """Rounds along the verifier's own greedy answer."""
    at = accepted = proposed = passes = 0
    while at < len(answer):
        committed = [*prompt, *answer[:at]]
        text = text_of(v, committed)[1:]  # without the dummy space
        said = text_of(d, [i for i in greedy(d, [d.bos, *d.tokenizer.encode(text.decode('utf-8', errors='ignore')).ids], gamma) if i != d.eos])
        candidates = translated(v, committed, said, strategy)
        agreed = 0
        while agreed < min(len(candidates), len(answer) - at) and candidates[agreed] == answer[at + agreed]:
            agreed += 1
        proposed += min(len(candidates), len(answer) - at)
        accepted += agreed
        passes += 1
        at += agreed + 1
    return Kept(accepted, proposed, passes, len(answer))


def token_time(m: Model, times: int = 60) -> float:
    """Milliseconds a token, median, after 64 tokens."""
    with torch.inference_mode():
        cache, taken = {cache_keyword(m.net): DynamicCache()}, []
        m.net(torch.full((1, 64), 5), use_cache=True, **cache)
        for _ in range(times):
            began = time.perf_counter()
            m.net(torch.tensor([[5]]), use_cache=True, **cache)
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--verifier", default="bundled:polish-verifier")
    p.add_argument("--drafts", nargs="*", default=["bundled:polish-draft", "bundled:polish-draft-general"])
    p.add_argument("--essays", type=Path, help="a text nobody was trained on, for bits per byte")
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--gamma", type=int, nargs="*", default=[2, 4, 6])
    p.add_argument("--strategies", nargs="*", default=["naive", "context"])
    p.add_argument("--genres", nargs="*", default=["encyclopaedic", "instructions", "questions"])
    p.add_argument("--prompts", type=int, default=12, help="of each genre")
    p.add_argument("--show", action="store_true", help="print what the verifier writes")
    a = p.parse_args()
    torch.set_num_threads(1)
    v, drafts = load(a.verifier), [load(n) for n in a.drafts]
    for m in (v, *drafts):
        size = sum(x.numel() for x in m.net.parameters()) / 1e6
        print(f"{m.name}: {size:.1f} million parameters, {token_time(m):.2f} ms a token on one thread", flush=True)
        if a.essays:
            bits, count = bits_per_byte(m, a.essays.read_text("utf-8"))
            print(f"{m.name}: {bits:.3f} bits per byte, {count:,} tokens of {a.essays.name}", flush=True)
    answers: dict[str, list] = {}  # genre → (prompt, answer) as ids
    for prompt in (x for genre in a.genres for x in builtin(f"polish.{genre}").prompts[: a.prompts] if drafts):
        ids = [v.bos, *v.tokenizer.encode(" " + prompt.text).ids]
        answers.setdefault(prompt.category, []).append((ids, greedy(v, ids, a.tokens)))
        if a.show:
            print(f"[{prompt.text}]", text_of(v, answers[prompt.category][-1][1]).decode("utf-8", "replace"), flush=True)
    for d in drafts:
        for strategy in a.strategies:
            for gamma in a.gamma:
                by = {genre: [kept(v, d, *pair, gamma, strategy) for pair in pairs] for genre, pairs in answers.items()}
                print(f"{d.name} {strategy} k={gamma}: " + "; ".join(line(g, r) for g, r in [*by.items(), ("all", sum(by.values(), []))]), flush=True)


def line(genre: str, rounds: list[Kept]) -> str:
    accepted, proposed = sum(r.accepted for r in rounds), sum(r.proposed for r in rounds)
    passes, tokens = sum(r.passes for r in rounds), sum(r.tokens for r in rounds)
    return f"{genre} {accepted / max(proposed, 1):.2f} ({accepted}/{proposed}), {tokens / passes:.2f} tokens a pass"


if __name__ == "__main__":
    main()
