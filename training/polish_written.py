"""Let a verifier write the texts a draft learns from: greedy continuations of beginnings taken from the Polish texts.

    python -m training.polish_written --checkpoint DIR/checkpoint.pt --tokenizer tokenizer.json --texts DIR --out written.txt.xz --minutes 10

What a draft is for is to say what the verifier would say, so it learns from the verifier's own words (sequence-level distillation,
Kim & Rush 2016). Text crosses between tokenizers where probabilities do not. One pair [beginning, what the verifier wrote] a line; running it again adds to the file.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from training.network import Shape, rotate
from training.polish_corpus import documents
from training.polish_train import Tied, bf16

BATCH, LONGEST, NEW = 128, 48, 80  # texts at a time; tokens of a beginning at most, and written after it
ASKED = ("Co to jest {}?", "Czym jest {}?", "{} to", "{} –", "Opisz, czym jest {}.", "Jak działa {}?", "Dlaczego {}", "Kim był {}?",
         "Jak zmienić {}?", "Aby użyć {},", "Napisz krótko o {}.", "Pytanie: Co oznacza {}?\nOdpowiedź:", "Gdzie leży {}?", "Kto {}?",
         "Wyjaśnij, co znaczy {}.", "Podaj przykłady: {}.", "Wymień trzy cechy, które ma {}.", "Jaki jest {}?", "Ile {}?", "{} jest")


def beginnings(texts: Path, rng: np.random.Generator):
    """Endless beginnings: from the first words of a line, or a question about a term."""
    kept = [d for d in documents(texts) if not d.held_out]
    terms = [line.split(" – ")[0] for d in kept if d.source == "freedict_glosses" for line in d.text.split("\n") if " – " in line]
    terms = [t for t in terms if 2 < len(t) < 30 and "*" not in t]
    lines = [line for d in kept for line in d.text.split("\n") if len(line) > 30]
    while True:
        if rng.random() < 0.4:
            yield ASKED[rng.integers(len(ASKED))].format(terms[rng.integers(len(terms))])
        else:
            words = lines[rng.integers(len(lines))].split(" ")
            yield " ".join(words[: rng.integers(2, 20)])


class Writer:
    """A trained network in bfloat16 with a key-value cache of fixed size, many texts at a time."""

    def __init__(self, model: Tied, batch: int, length: int):
        self.model, s = model.to(torch.bfloat16 if bf16() else torch.float32), model.shape
        kind = model.embed.weight.dtype
        inverse = s.rope_theta ** (-torch.arange(0, s.head, 2).float() / s.head)
        angle = torch.outer(torch.arange(length).float(), inverse)
        self.cos, self.sin = (torch.cat((f, f), -1).to(kind) for f in (angle.cos(), angle.sin()))
        self.keys, self.values = (torch.zeros(s.layers, batch, s.heads, length, s.head, dtype=kind) for _ in range(2))
        self.head = model.embed.weight[:-1].T.contiguous()  # no text has an id never seen

    def next(self, rows, at: int):
        """rows (batch, t) of the embedding, the first of them at position `at` -> (batch,) the likeliest rows after the last."""
        s, (b, t) = self.model.shape, rows.shape
        x, cos, sin = self.model.embed(rows), self.cos[at : at + t], self.sin[at : at + t]
        for n, layer in enumerate(self.model.layers):
            q, k, v = layer.qkv(F.rms_norm(x, (s.width,), layer.norm1, s.norm_eps)).view(b, t, 3, s.heads, s.head).permute(2, 0, 3, 1, 4)
            self.keys[n, :, :, at : at + t], self.values[n, :, :, at : at + t] = rotate(k, cos, sin), v
            k, v = self.keys[n, :, :, : at + t], self.values[n, :, :, : at + t]
            y = F.scaled_dot_product_attention(rotate(q, cos, sin), k, v, is_causal=t > 1)
            x = x + layer.o(y.transpose(1, 2).reshape(b, t, -1))
            gate, up = layer.gate_up(F.rms_norm(x, (s.width,), layer.norm2, s.norm_eps)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        return (F.rms_norm(x[:, -1], (s.width,), self.model.norm, s.norm_eps) @ self.head).argmax(-1)

    def write(self, rows, count: int):
        """rows (batch, t) -> (batch, t + count)."""
        out, fed = [rows], 0
        for _ in range(count):
            out.append(self.next(out[-1], fed)[:, None])
            fed += out[-2].shape[1]
        return torch.cat(out, 1)


@torch.inference_mode()
def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--checkpoint", type=Path, required=True)
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--texts", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--minutes", type=float, default=10)
    p.add_argument("--seed", type=int, default=0)
    a = p.parse_args()
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(a.tokenizer))
    c = torch.load(a.checkpoint, weights_only=True)
    model = Tied(Shape(**c["shape"]), c["model"]["known"], tokenizer.get_vocab_size())
    model.load_state_dict(c["model"])
    writer, end_id = Writer(model, BATCH, LONGEST + NEW), tokenizer.token_to_id("</s>")
    source = beginnings(a.texts, np.random.default_rng(a.seed))
    waiting: list[list[int]] = []
    end, written, tokens = time.process_time() + a.minutes * 60, 0, 0
    while time.process_time() < end:
        waiting += [tokenizer.encode(next(source)).ids[:LONGEST] for _ in range(BATCH * 8 - len(waiting))]
        waiting.sort(key=len)
        at = int(np.random.default_rng(written).integers(len(waiting) - BATCH))
        group, waiting = waiting[at : at + BATCH], waiting[:at] + waiting[at + BATCH :]
        ids = torch.tensor([g[: len(group[0])] for g in group])  # cut to one length: no padding
        out = torch.cat((ids, model.known[writer.write(model.to_row[ids], NEW)[:, ids.shape[1] :]]), 1).tolist()
        with lzma.open(a.out, "at", encoding="utf-8") as f:
            for row in out:
                row = row[: row.index(end_id)] if end_id in row else row
                text = tokenizer.decode(row, skip_special_tokens=True).rstrip("\ufffd")
                begun = tokenizer.decode(row[: ids.shape[1]], skip_special_tokens=True).rstrip("\ufffd")
                f.write(json.dumps([begun, text[len(begun) :]], ensure_ascii=False) + "\n")
                tokens += len(row) - ids.shape[1]
        written += BATCH
        print(f"{written} texts, {tokens} tokens, {(end - time.process_time()) / 60:.1f} minutes left", flush=True)


if __name__ == "__main__":
    main()
