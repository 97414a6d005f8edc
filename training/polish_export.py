"""Write a trained Polish model as an ordinary Llama folder: safetensors in float16, config, tokenizer.

    python -m training.polish_export --checkpoint DIR/checkpoint.pt --tokenizer tokenizer.json --out models/polish-verifier
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from training.export_draft import config, llama_names

CONTEXT = 4096  # what an engine may feed; the rows trained on reached 2,048 tokens


def weights(state: dict, shape: dict) -> dict:
    """The full vocabulary: known ids have their rows, all others the one they share."""
    state = {**state, "embed.weight": state["embed.weight"][state["to_row"]], "head.weight": state["embed.weight"]}
    out = llama_names(state, shape)
    del out["lm_head.weight"]  # tied
    return {k: v.half().contiguous() for k, v in out.items()}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--checkpoint", type=Path, required=True)
    p.add_argument("--tokenizer", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    c = torch.load(a.checkpoint, weights_only=True)
    tokenizer = Tokenizer.from_file(str(a.tokenizer))
    bos, eos = tokenizer.token_to_id("<s>"), tokenizer.token_to_id("</s>")
    a.out.mkdir(parents=True, exist_ok=True)
    save_file(weights(c["model"], c["shape"]), a.out / "model.safetensors", {"format": "pt"})
    about = config(c["shape"] | {"context": CONTEXT}) | {"dtype": "float16", "vocab_size": tokenizer.get_vocab_size(), "tie_word_embeddings": True,
                                  "bos_token_id": bos, "eos_token_id": eos}
    del about["speclens_tokenizer"]
    write(a.out / "config.json", about)
    write(a.out / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos, "do_sample": False})
    write(a.out / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
        **({"unk_token": "<unk>"} if tokenizer.token_to_id("<unk>") is not None else {}),
        "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT})
    shutil.copyfile(a.tokenizer, a.out / "tokenizer.json")
    for file in a.out.iterdir():
        file.chmod(0o644)
    print(f"{a.out}: {sum(f.stat().st_size for f in a.out.iterdir()) / 1e6:.1f} MB after {c['step']:,} steps")


def write(path: Path, data: dict) -> None:
    path.write_text(json.dumps(data, indent=2) + "\n")


if __name__ == "__main__":
    main()
