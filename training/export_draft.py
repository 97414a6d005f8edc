"""Write a distilled draft as the folder the app loads: safetensors in bfloat16, a Llama config, the vocabulary map.

    python -m training.export_draft --checkpoint DIR/checkpoint.pt --out models/smollm2-draft
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from training.samples import TEMPERATURE


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--checkpoint", type=Path, required=True)
    p.add_argument("--out", type=Path, required=True)
    a = p.parse_args()
    c = torch.load(a.checkpoint, weights_only=True)
    a.out.mkdir(parents=True, exist_ok=True)
    weights = {k: v.bfloat16().contiguous() for k, v in llama_names(c["model"], c["shape"]).items()}
    save_file(weights, a.out / "model.safetensors", {"format": "pt"})
    share = c["model"]["gate"].sigmoid()
    share[0] = 0  # no match, no copy
    save_file({"to_verifier": c["to_verifier"].int(), "copy_share": share, "copy_temperature": torch.tensor(TEMPERATURE)},
              a.out / "draft_vocabulary.safetensors")
    (a.out / "config.json").write_text(json.dumps(config(c["shape"]), indent=2) + "\n")
    for file in a.out.iterdir():
        file.chmod(0o644)
    print(f"{a.out}: {sum(f.stat().st_size for f in a.out.iterdir()) / 1e6:.1f} MB after {c['step']:,} steps")


def llama_names(weights: dict, shape: dict) -> dict:
    """The distilled weights under the names of transformers' LlamaForCausalLM."""
    inner = shape["heads"] * shape["head"]
    out = {"model.embed_tokens.weight": weights["embed.weight"], "model.norm.weight": weights["norm"],
           "lm_head.weight": weights["head.weight"]}
    for i in range(shape["layers"]):
        at, to = f"layers.{i}.", f"model.layers.{i}."
        q, k, v = weights[at + "qkv.weight"].split(inner)
        gate, up = weights[at + "gate_up.weight"].split(shape["mlp"])
        out |= {
            to + "self_attn.q_proj.weight": q, to + "self_attn.k_proj.weight": k, to + "self_attn.v_proj.weight": v,
            to + "self_attn.o_proj.weight": weights[at + "o.weight"], to + "mlp.gate_proj.weight": gate, to + "mlp.up_proj.weight": up,
            to + "mlp.down_proj.weight": weights[at + "down.weight"],
            to + "input_layernorm.weight": weights[at + "norm1"], to + "post_attention_layernorm.weight": weights[at + "norm2"]}
    return out


def config(shape: dict) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "vocab_size": shape["vocabulary"],
        "hidden_size": shape["width"], "intermediate_size": shape["mlp"], "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"], "num_key_value_heads": shape["heads"], "head_dim": shape["head"], "hidden_act": "silu",
        "rms_norm_eps": shape["norm_eps"], "max_position_embeddings": shape["context"], "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
        # Both spellings of the rotary base: transformers 5 reads the first, other engines the second.
        "rope_parameters": {"rope_type": "default", "rope_theta": shape["rope_theta"]}, "rope_theta": shape["rope_theta"],
        "speclens_tokenizer": "bundled:smollm2-135m",
    }


if __name__ == "__main__":
    main()
