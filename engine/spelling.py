"""How a tokenizer spells bytes: read off its pipeline of normalizer, pre_tokenizer and decoder, as in tokenizer.json.

Six ways to spell are told apart, by what the parts do and never by a tokenizer's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container
from typing import Any

BYTE_LEVEL, SENTENCEPIECE, WORDPIECE, SUFFIX, WORDS, PLAIN = (
    "byte-level", "sentencepiece", "wordpiece", "suffix", "words", "plain")

PADDING = re.compile(r"\[PAD\d+\]")  # written by GGUF converters to fill a padded vocabulary; no text ever becomes one
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "\u2581"  # ▁


def pipeline_of(backend: Any) -> dict:
    """The parts of a `tokenizers.Tokenizer` that tell how it spells, parsed. Not its vocabulary: that takes seconds.

    Of the model: its `type`, `byte_fallback`, and the marks it puts on continued words (`prefix`) and on their ends (`suffix`).
    """
    parts = {name: getattr(backend, name) for name in ("normalizer", "pre_tokenizer", "decoder")}
    model = backend.model
    fallback = getattr(model, "byte_fallback", None)
    if fallback is None and backend.decoder is None:  # a Unigram does not say; with all 256 byte pieces it has it
        fallback = all(backend.token_to_id(f"<0x{b:02X}>") is not None for b in range(256))
    return {name: part and json.loads(part.__getstate__()) for name, part in parts.items()} | {"model": {
        "type": type(model).__name__, "byte_fallback": bool(fallback),
        "prefix": getattr(model, "continuing_subword_prefix", None), "suffix": getattr(model, "end_of_word_suffix", None)}}


def scheme(pipeline: dict) -> str:
    """Which of the ways to spell this tokenizer uses."""
    decoder, pre = _kinds(pipeline["decoder"]), _kinds(pipeline["pre_tokenizer"])
    if "ByteLevel" in decoder + pre + _kinds(pipeline["normalizer"]):
        return BYTE_LEVEL
    marked = _SPACE_MARK in json.dumps(pipeline["decoder"], ensure_ascii=False)
    if marked or "ByteFallback" in decoder or "Metaspace" in decoder + pre:
        return SENTENCEPIECE
    if "WordPiece" in decoder:
        return WORDPIECE
    if "BPEDecoder" in decoder:
        return SUFFIX
    if decoder:
        return PLAIN
    # Without a decoder, what the other parts write into tokens; failing that the library joins tokens with spaces.
    if _SPACE_MARK in json.dumps([pipeline["normalizer"], pipeline["pre_tokenizer"]], ensure_ascii=False):
        return SENTENCEPIECE
    if pipeline["model"]["type"] == "WordPiece":
        return WORDPIECE
    return SUFFIX if pipeline["model"]["suffix"] else WORDS


def speller(pipeline: dict) -> Callable[[str, bool], bytes]:
    """A function (token, is_added) → the bytes it stands for. Added tokens match, and so stand for, literal text."""
    way, decoder, model = scheme(pipeline), pipeline["decoder"], pipeline["model"]
    fallback = "ByteFallback" in _kinds(decoder) or (not decoder and model["byte_fallback"])
    continuing = _find(decoder, "WordPiece").get("prefix") or model["prefix"] or "##"
    suffix = _find(decoder, "BPEDecoder").get("suffix") or model["suffix"] or "</w>"

    def spell(token: str, added: bool) -> bytes:
        if way == SENTENCEPIECE:  # runs of ▁ may be listed as added tokens too, and are spaces all the same
            byte = _BYTE_TOKEN.fullmatch(token) if fallback else None
            return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE_MARK, " ").encode()
        if added:
            return token.encode()
        if way == BYTE_LEVEL:
            if model["suffix"] and token.endswith(suffix):  # CLIP's way: bytes, and a mark at the end of a word
                return spell(token[:-len(suffix)], added) + b" "
            # A token outside the byte alphabet is its own text, as the library's decoder takes it.
            return bytes(_BYTE_OF[c] for c in token) if _BYTE_OF.keys() >= set(token) else token.encode()
        if way == WORDPIECE:
            return (token[len(continuing):] if token.startswith(continuing) else " " + token).encode()
        if way == SUFFIX:
            return (token[:-len(suffix)] + " " if token.endswith(suffix) else token).encode()
        return (" " + token if way == WORDS else token).encode()

    return spell


def marks_start(pipeline: dict) -> bool:
    """Whether the decoder takes one space off the beginning of a text, where it only marks a word's start."""
    way, decoder = scheme(pipeline), pipeline["decoder"]
    if way != SENTENCEPIECE:
        return way in (WORDPIECE, WORDS)
    if not decoder:  # nobody takes it off: it is there if one was put there
        pre = _find(pipeline["pre_tokenizer"], "Metaspace")
        return "Prepend" in _kinds(pipeline["normalizer"]) or pre.get("prepend_scheme", "never") != "never"
    strip = _find(decoder, "Strip")
    return (_find(decoder, "Metaspace").get("prepend_scheme", "never") != "never"
            or (strip.get("content") == " " and strip.get("start", 0) > 0))


def marks_end(pipeline: dict) -> bool:
    """Whether a word's last token carries a mark that is read as a space, also where none follows."""
    return scheme(pipeline) == SUFFIX or bool(pipeline["model"]["suffix"])


def shrink_bound(pipeline: dict) -> int | None:
    """How many times shorter in bytes a text may get before it is cut into tokens; None if there is no bound:
    unknown words become one token of any length, and some normalizers drop text."""
    way, normalizer = scheme(pipeline), pipeline["normalizer"]
    kinds = set(_kinds(normalizer))
    covered = way == BYTE_LEVEL or (way == SENTENCEPIECE and "ByteFallback" in _kinds(pipeline["decoder"]))
    only_spaces_marked = all(step["pattern"] == {"String": " "} and step["content"] == _SPACE_MARK
                             for step in _steps(normalizer) if step["type"] == "Replace")
    if not covered or not only_spaces_marked or not kinds <= {"Sequence", "NFC", "Prepend", "Replace"}:
        return None
    return 4 if "NFC" in kinds else 1  # composing makes UTF-8 at most about three times shorter


def missing_bytes(pipeline: dict, tokens: Container[str]) -> frozenset[int]:
    """Bytes with no token of their own in a byte-level vocabulary; without an unknown token they are left out of a text."""
    if scheme(pipeline) != BYTE_LEVEL:
        return frozenset()
    return frozenset(b for c, b in _BYTE_OF.items() if c not in tokens)


def renamed(backend: Any, names: dict[str, str]) -> Any:
    """The same `tokenizers.Tokenizer` with some tokens spelled differently, ids unchanged, and nothing added, cut or
    padded. A renamed token matches wherever it stands, also inside a word. Takes seconds for a large vocabulary."""
    pipeline = json.loads(backend.to_str())
    model = pipeline["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(token, token): i for token, i in model["vocab"].items()}
    else:  # Unigram: [piece, score] in order of id
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if model.get("merges"):
        pairs = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if not {a, b, a + b} & names.keys()]
    added = [dict(a, content=names[a["content"]], single_word=False) if a["content"] in names else a
             for a in pipeline["added_tokens"]]
    pipeline |= {"added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
    return type(backend).from_str(json.dumps(pipeline))


def _steps(part: dict | None) -> list[dict]:
    """A pipeline part and everything nested in it, flat."""
    if not part:
        return []
    inner = part.get("decoders") or part.get("pretokenizers") or part.get("normalizers") or []
    return [part, *(step for p in inner for step in _steps(p))]


def _kinds(part: dict | None) -> list[str]:
    return [step["type"] for step in _steps(part)]


def _find(part: dict | None, kind: str) -> dict:
    return next((step for step in _steps(part) if step["type"] == kind), {})


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 characters stand for their own byte, the others for 256, 257, … in order."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in own]
    return {chr(b): b for b in own} | {chr(256 + n): b for n, b in enumerate(rest)}


_BYTE_OF = _byte_alphabet()
