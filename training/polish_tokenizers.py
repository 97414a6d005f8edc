"""Make the drafts' two tokenizers: byte-level BPE, one learned from Polish, one from English, Python code and a little Polish.

    python -m training.polish_tokenizers --texts DIR --out DIR [--samples smollm2_samples.npz --smollm2 FOLDER]

The English is what SmolLM2-135M-Instruct answered (`--samples`, decoded with the tokenizer in `--smollm2`), the code the Python
standard library of the interpreter that runs this. Both tokenizers know `<s>` and `</s>` and put `<s>` first.
"""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from training.polish_corpus import documents

PIECES = 8_000
ENGLISH, CODE, POLISH = 6_000_000, 3_000_000, 500_000  # characters the general tokenizer is learned from


def learned(texts) -> Tokenizer:
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=PIECES, special_tokens=["<s>", "</s>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(texts, trainer)
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)])
    return t


def most(texts, characters: int):
    """Texts from the front until there are so many characters."""
    for text in texts:
        if characters <= 0:
            return
        yield text[:characters]
        characters -= len(text)


def english(samples: Path, smollm2: Path):
    t = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    with np.load(samples) as f:
        for ids in np.split(f["answer_ids"], np.cumsum(f["answer_lengths"])[:-1]):
            yield t.decode(ids.tolist())


def code():
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield file.read_text("utf-8", errors="ignore")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--texts", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--samples", type=Path)
    p.add_argument("--smollm2", type=Path)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    polish = [d.text for d in documents(a.texts) if not d.held_out]
    learned(polish).save(str(a.out / "polish.json"))
    if a.samples:
        some = [polish[i] for i in np.random.default_rng(0).permutation(len(polish))]
        mix = [*most(english(a.samples, a.smollm2), ENGLISH), *most(code(), CODE), *most(some, POLISH)]
        learned(mix).save(str(a.out / "general.json"))
    for file in sorted(a.out.glob("*.json")):
        t = Tokenizer.from_file(str(file))
        held = [d.text for d in documents(a.texts) if d.held_out]
        print(file.name, t.get_vocab_size(), "pieces;", round(sum(len(t.encode(x).ids) for x in held) / sum(len(x.split()) for x in held), 2),
              "tokens per word of held-out Polish")


if __name__ == "__main__":
    main()
