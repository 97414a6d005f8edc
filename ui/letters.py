"""Bytes of a token as characters: which it holds, and which it shares with its neighbours."""

from __future__ import annotations

Piece = tuple[str, str]  # ("text", characters) or ("byte", two hex digits)


def cut(waiting: bytes, raw: bytes) -> tuple[tuple[Piece, ...], bytes, str]:
    """Lay a token's bytes on characters: (pieces, bytes that wait for the rest of a character, character it completed).

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
    """Bytes of the character that begins with this byte; 1 for a byte that begins none."""
    if 0xC2 <= first < 0xF5:
        return 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    return 1
