"""Bytes of a token as characters: which it holds, which it shares with its neighbours, and how the unseen ones are
shown."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

Piece = tuple[str, str]  # ("text", characters) or ("byte", two hex digits)


def cut(waiting: bytes, raw: bytes) -> tuple[tuple[Piece, ...], bytes, str]:
    """Lay a token's bytes on characters: (pieces, bytes still waiting for the rest of a character, character it
    completed).

    `waiting` are the bytes of an unfinished character before it. Bytes that never make a character stay bytes; no
    replacement character is ever made.
    """
    data, start = waiting + raw, len(waiting)
    pieces: list[Piece] = []
    finished, i = "", 0
    while i < len(data):
        size = _length(data[i])
        chunk = data[i : i + size]
        try:
            character = chunk.decode("utf-8")
        except UnicodeDecodeError as e:
            if size and len(chunk) < size and e.reason == "unexpected end of data":
                pieces += [("byte", f"{b:02X}") for b in data[max(i, start) :]]
                return tuple(pieces), data[i:], finished
            if i >= start:
                pieces.append(("byte", f"{data[i]:02X}"))
            i += 1
            continue
        if i < start < i + size:  # its first bytes lie in earlier tokens
            pieces += [("byte", f"{b:02X}") for b in data[start : i + size]]
            finished = character
            pieces.append(("text", character))
        elif pieces and pieces[-1][0] == "text":
            pieces[-1] = ("text", pieces[-1][1] + character)
        else:
            pieces.append(("text", character))
        i += size
    return tuple(pieces), b"", finished


def _length(first: int) -> int:
    return (
        1
        if first < 0x80
        else 2
        if 0xC2 <= first < 0xE0
        else 3
        if 0xE0 <= first < 0xF0
        else 4
        if 0xF0 <= first < 0xF5
        else 1
    )


@lru_cache(maxsize=65536)
def visible(raw: str, special: bool = False) -> str:
    """A token's bytes (hex) as one short line of visible characters: ·the, ⏎, →, ⟨C5⟩, ⟨im_end⟩."""
    data = bytes.fromhex(raw)
    if special:
        return f"⟨{special_name(data)}⟩"
    out = []
    for kind, text in cut(b"", data)[0]:
        out.append(
            f"⟨{text}⟩"
            if kind == "byte"
            else "".join(MARKS.get(c) or (f"⟨{code_name(c)}⟩" if hidden(c) else c) for c in text)
        )
    return "".join(out) or "⟨empty⟩"


def special_name(data: bytes) -> str:
    """<|im_end|> → im_end, </s> → /s."""
    name = data.decode("utf-8", "backslashreplace").strip("<>|[]").strip() or "special"
    return "".join(f"U+{ord(c):04X}" if hidden(c) or c in MARKS else c for c in name)


MARKS = {" ": "·", "\n": "⏎", "\t": "→"}


def hidden(c: str) -> bool:
    """Characters that show nothing or reorder what follows: controls, zero width, direction marks, other spaces."""
    return c not in MARKS and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Zs", "Co", "Cs", "Cn")


def code_name(c: str) -> str:
    return {"\r": "CR", "\x00": "NUL", "\u00a0": "NBSP"}.get(c, f"U+{ord(c):04X}")
