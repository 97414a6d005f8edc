"""Small honest stand-ins: toy tokenizers as transformers fast tokenizers, and tiny random Llama folders."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from engine.tokens import Vocabulary

CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# Trims, like Llama's templates; refuses the system role, like Gemma's.
NO_SYSTEM = ("{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
             "{{ raise_exception('System role not supported') }}{% endif %}"
             "{{ '[INST] ' + m['content'] | trim + ' [/INST]' }}{% endfor %}")
DROPS_SYSTEM = ("{% for m in messages %}{% if m['role'] == 'user' %}{{ '<s>user\n' + m['content'] + '</s>' }}{% endif %}"
                "{% endfor %}{{ '<s>assistant\n' }}")
THINKING = CHATML[:-len("{% endif %}")] + (
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}")
WORD_CHAT = ("{% for m in messages %}{{ '<s> ' + m['role'] + ' \n ' + m['content'] + ' </s> \n ' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<s> assistant \n' }}{% endif %}")

SPM_PIECES = [("▁Za", -1.0), ("ż", -2.0), ("ółć", -2.0), ("▁gęś", -1.0), ("lą", -1.0), ("▁jaźń", -1.0), ("▁", -3.0)]


def fast(backend: Tokenizer, template: str | None = None, **special: str) -> PreTrainedTokenizerFast:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **special)
    tokenizer.chat_template = template
    return tokenizer


def sentencepiece_like(template: str | None = None, bos: bool = True) -> PreTrainedTokenizerFast:
    """Unigram with byte fallback. `bos`: the tokenizer itself puts <s> in front of a raw text."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((f"<0x{b:02X}>", -20.0) for b in range(256)), *SPM_PIECES]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return fast(backend, template, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def byte_level(template: str | None = None, marks: tuple[str, ...] = ("<|im_start|>", "<|im_end|>"),
               plain_marks: tuple[str, ...] = ("<think>", "</think>")) -> PreTrainedTokenizerFast:
    """BPE over the 256 byte symbols without merges; `marks` are special, `plain_marks` added without the flag."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in marks])
    backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain_marks])
    return fast(backend, template, **({"eos_token": marks[-1]} if marks else {}))


def chat_toy(template: str | None = WORD_CHAT) -> PreTrainedTokenizerFast:
    """Word level, eleven words; words are parted by single spaces."""
    words = ["<unk>", "<s>", "</s>", "system", "user", "assistant", "Ala", "ma", "kota", "reszta", "\n"]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "removed")
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in words[:3]])
    return fast(backend, template, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def vocabulary(tokenizer: PreTrainedTokenizerFast, model: str = "toy") -> Vocabulary:
    return Vocabulary(tokenizer, model)


def tiny_llama(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None, seed: int = 0, vocab_size: int = 50,
               context: int = 512, tied: bool = True, **config) -> Path:
    """A random Llama in `folder`: 2 layers, hidden 32, 4 heads on 2 key-value heads, float32, weights × 3 so that
    near-ties are rare. With the chat toy's tokenizer unless another is given (`vocab_size` then grows to hold it)."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tokenizer or chat_toy()
    settings = dict(vocab_size=max(vocab_size, len(tokenizer)), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=context,
                    tie_word_embeddings=tied, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    with torch.random.fork_rng(devices=[]):  # no effect on whoever else draws
        torch.manual_seed(seed)
        model = LlamaForCausalLM(LlamaConfig(**{**settings, **config})).float()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)
