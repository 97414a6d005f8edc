"""Whether a config describes a causal language model: one that writes from left to right, each token read without those after it.

An encoder reads both ways: what it makes of a token changes with the tokens behind it, so no cache, no draft and no entropy
of its means anything. Told by the kind of network and by its head, from config.json alone.
"""

from __future__ import annotations

import re
from typing import Any, Mapping

from engine.models.config_fields import text_config

ENCODERS = frozenset(
    "albert bert bert-generation big_bird camembert canine convbert data2vec-text deberta deberta-v2 distilbert electra ernie ernie_m esm eurobert "
    "flaubert fnet funnel ibert jina-bert layoutlm layoutlmv2 layoutlmv3 lilt longformer luke megatron-bert mobilebert modernbert mpnet mra "
    "neobert nezha nomic-bert nomic_bert nystromformer perceiver qdqbert rembert roberta roberta-prelayernorm roc_bert roformer splinter "
    "squeezebert tapas xlm xlm-roberta xlm-roberta-xl xmod yoso clip_text_model siglip_text_model t5encoder".split())  # unless is_decoder
ENCODER_DECODERS = frozenset(
    "t5 mt5 umt5 longt5 switch_transformers t5gemma t5gemma2 bart mbart plbart mvp pegasus pegasus_x bigbird_pegasus m2m_100 nllb-moe marian "
    "blenderbot blenderbot-small led fsmt prophetnet xlm-prophetnet whisper speech_to_text seamless_m4t seamless_m4t_v2 encoder-decoder "
    "vision-encoder-decoder speech-encoder-decoder pix2struct trocr moonshine".split())
STATEFUL = frozenset("mamba mamba2 falcon_mamba rwkv rwkv5 rwkv6 rwkv7 recurrent_gemma jamba zamba zamba2 bamba falcon_h1 nemotron_h "
                     "lfm2 lfm2_moe qwen3_next minimax plamo2 kimi_linear xlstm".split())
_OTHER_HEADS = re.compile(
    r"For(MaskedLM|MaskedDiffusion\w*|PreTraining|SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|NextSentencePrediction|"
    r"ImageClassification|MaskedImageModeling|ObjectDetection|AudioClassification|CTC|TextEncoding|Retrieval|RewardModel\w*)$|EncoderModel$|RewardModel$")
WAY_OUT = "choose a causal language model, one that writes from left to right"


def unfit(config: Mapping[str, Any]) -> str | None:
    """Why a model of this config cannot write from left to right, as the end of a sentence about it; None if it can, or may."""
    kind, text = str(config.get("model_type", "")), text_config(config)
    heads = [name for name in config.get("architectures") or () if isinstance(name, str)]
    writes = any(name.endswith(("ForCausalLM", "LMHeadModel")) and not name.endswith("WithLMHeadModel") for name in heads)
    called = f"{kind}, {heads[0]}" if heads else kind
    if config.get("is_encoder_decoder") is True or (kind in ENCODER_DECODERS and not writes):
        return f"is an encoder-decoder ({called})"
    if kind in ENCODERS and config.get("is_decoder") is not True:
        return f"is an encoder, which reads in both directions ({called})"
    if heads and all(_OTHER_HEADS.search(name) for name in heads):
        return f"has another head than a language model's ({called})"
    if text.get("is_causal") is False or text.get("use_bidirectional_attention") is True:
        return f"reads in both directions, as its config.json says ({called})"
    return None


def stateful(config: Mapping[str, Any]) -> bool:
    """Whether a layer is known to keep a running state instead of keys, so that no token can be taken back. Of an unknown kind only
    the loaded network tells."""
    text = text_config(config)
    kinds = text.get("layer_types")
    return text.get("model_type", config.get("model_type")) in STATEFUL or (
        isinstance(kinds, list) and any(kind in ("linear_attention", "mamba", "conv", "recurrent") for kind in kinds))
