"""The Polish texts as documents: neighbouring lines together, shares by kind of text, one slice held out.

`folder` holds `NAME.txt.xz`, one sentence or entry a line, in the order of the work they come from. The same documents are cut for
every tokenizer, so that models with different tokenizers learn the same text.
"""

from __future__ import annotations

import lzma
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

# How often a document of this file is read in one pass: connected prose more, lists of messages and options less.
SHARES = {"colobot_help": 1.0, "debian_handbook": 2.0, "freeciv": 1.0, "freedict_glosses": 0.9, "gnome_user_docs": 1.0,
          "libreoffice_help": 0.7, "manpages": 0.7, "wesnoth": 1.3}
# The same at the end of training, when the learning rate falls: what is read last shapes the model most.
LAST_SHARES = {"colobot_help": 1.0, "debian_handbook": 3.0, "freeciv": 1.0, "freedict_glosses": 1.0, "gnome_user_docs": 1.0,
               "libreoffice_help": 0.5, "manpages": 0.5, "wesnoth": 1.6}
LENGTH = 1500  # characters after which a document ends
MARKED = 0.12  # share of documents that get Markdown marks, which the texts themselves lack
HELD_OUT = 100  # one document in so many is never trained on


@dataclass(frozen=True)
class Document:
    source: str
    text: str
    held_out: bool


def documents(folder: Path) -> list[Document]:
    """Every line of every file, in order, joined to documents of about LENGTH characters."""
    rng = np.random.default_rng(0)
    out = []
    for file in sorted(folder.glob("*.txt.xz")):
        name = file.name.removesuffix(".txt.xz")
        lines, size = [], 0
        for line in [*lzma.open(file, "rt", encoding="utf-8").read().split("\n"), None]:
            if line is None or size >= LENGTH:
                text = "\n".join(lines).strip()
                if text:
                    out.append(Document(name, marked(text, rng) if rng.random() < MARKED else text, len(out) % HELD_OUT == 7))
                lines, size = [], 0
            if line:
                lines.append(line)
                size += len(line)
    return out


def marked(text: str, rng: np.random.Generator) -> str:
    """The text with Markdown: short lines without a full stop become headings, terms bold, runs of lines lists or paragraphs."""
    apart = "\n\n" if rng.random() < 0.7 else "\n"
    bullet = ("*   ", "* ", "- ", "1.  ")[rng.integers(4)]
    heading = ("### **{}**", "**{}**", "## {}", "### {}", "#### {}")[rng.integers(5)]
    out = []
    for line in text.split("\n"):
        term, dash, rest = line.partition(" – ")
        if dash and len(term) < 60:
            out.append(f"{bullet}**{term}:** {rest}" if rng.random() < 0.5 else f"{bullet}**{term}** – {rest}")
        elif len(line) < 70 and line[-1] not in ".,;:!?" and rng.random() < 0.6:
            out.append(heading.format(line))
        elif rng.random() < 0.2:
            out.append(f"{bullet}{line}")
        else:
            words = line.split(" ")
            if len(words) > 6 and rng.random() < 0.3:
                at = int(rng.integers(len(words) - 2))
                words[at] = "**" + words[at]
                words[at + 1] += "**"
            out.append(" ".join(words))
    return apart.join(out)


@dataclass(frozen=True)
class Cut:
    """Documents as ids of one tokenizer, each from its begin token to its end token."""

    ids: list[np.ndarray]
    sources: list[str]
    held_out: np.ndarray  # bool (documents,)


def cut(documents: list[Document], tokenizer: Tokenizer, bos: int, eos: int) -> Cut:
    encoded = [tokenizer.encode(d.text, add_special_tokens=False).ids for d in documents]
    return Cut([np.array([bos, *ids, eos], np.int32) for ids in encoded], [d.source for d in documents],
               np.array([d.held_out for d in documents]))


def rows(c: Cut, shares: dict[str, float], length: int, rng: np.random.Generator):
    """Endless rows of `length + 1` ids: shuffled documents end to end, cut anew in every pass."""
    while True:
        share = np.array([0.0 if held else shares.get(s, 1.0) for s, held in zip(c.sources, c.held_out)])
        times = np.floor(share) + (rng.random(len(share)) < share % 1)
        order = rng.permutation(np.repeat(np.arange(len(share)), times.astype(int)))
        stream = np.concatenate([c.ids[i] for i in order])
        starts = np.arange(0, len(stream) - length - 1, length)
        for s in rng.permutation(starts):
            yield stream[s : s + length + 1]
