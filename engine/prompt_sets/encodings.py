"""Bytes to text: which encoding a file is in, by the evidence of its bytes, and what else it could be.

UTF-8 and UTF-16 prove themselves. The single-byte encodings do not: there each candidate is judged by how many letters it gives
that one language's alphabet holds, inside words. ISO-8859-2 has control characters at 80–9F, where cp1250 has ś, ź and quotes.
"""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

from engine.errors import RequestError

ENCODINGS = {
    "utf-8": "UTF-8", "utf-8-sig": "UTF-8 with BOM", "utf-16": "UTF-16 with BOM", "utf-16-le": "UTF-16 LE", "utf-16-be": "UTF-16 BE",
    "cp1250": "cp1250 (Windows)", "iso-8859-2": "ISO-8859-2", "cp1252": "cp1252 (Windows)",
    "iso-8859-1": "ISO-8859-1", "cp852": "cp852 (DOS)",
}
EVIDENCE = 200_000  # bytes of lines with letters past ASCII that are looked at
_ALPHABETS = (  # (language, its letters past a–z but the rarest, single-byte encodings it is written in); the first of equals wins
    ("Polish", "ąćęłńóśźż", ("cp1250", "iso-8859-2")),
    ("German", "äöüß", ("cp1252", "cp1250")),
    ("French", "àâæçéèêëîïôœùûüÿ", ("cp1252",)),
    ("Spanish or Portuguese", "áàâãçéêíñóôõúü", ("cp1252",)),
    ("Italian", "àèéìòù", ("cp1252",)),
    ("Czech", "áčďéěíňóřšťúůýž", ("cp1250", "iso-8859-2")),
    ("Slovak", "áäčďéíľňóôšťúýž", ("cp1250", "iso-8859-2")),
    ("Hungarian", "áéíóöőúüű", ("cp1250", "iso-8859-2")),
    ("Croatian or Slovene", "čćđšž", ("cp1250", "iso-8859-2")),
    ("Romanian", "âăîşţ", ("cp1250", "iso-8859-2")),
    ("Nordic", "äåæéöøðþáíóúý", ("cp1252",)),
)
_LETTERS = frozenset("".join(letters + letters.upper() for _, letters, _ in _ALPHABETS))
_SIGNS = frozenset("„”“‘’‚‹›«»–—…•€§°·×\xa0\xad")
_SOFT = re.compile("[ćńśź][aeiouyąęó]", re.IGNORECASE)
_SPANISH = frozenset("¿¡ªº")


@dataclass(frozen=True)
class Decoded:
    """`text` has LF line ends only. `notes` say what was chosen by evidence alone, and what the bytes would also fit."""

    text: str
    encoding: str
    notes: tuple[str, ...] = ()


def decode(content: bytes, encoding: str | None = None) -> Decoded:
    """The text of `content` in `encoding`, or in the one its bytes speak for.

    Bytes that are no character become U+DC80–U+DCFF, so that the rows that hold them can be refused and the others used.
    Raises RequestError for an encoding that is not offered and for UTF-16 that is cut in the middle of a character.
    """
    if encoding is None:
        encoding, notes = detect(content)
    elif encoding in ENCODINGS:
        notes = ()
    else:
        raise RequestError(f"The encoding {encoding!r} is not offered; choose one of {', '.join(ENCODINGS)}.")
    if encoding == "utf-16" and content[:2] not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise RequestError("The file does not begin with a UTF-16 mark; choose UTF-16 LE or UTF-16 BE, or another encoding.")
    try:
        text = content.decode(encoding, "surrogatepass" if encoding.startswith("utf-16") else "surrogateescape")
    except UnicodeDecodeError as e:
        raise RequestError(f"The file is not {ENCODINGS[encoding]} (byte {e.start:,} of {len(content):,}: {e.reason}); "
                           "choose another encoding.") from None
    text = text.removeprefix("\ufeff")  # a mark is not part of the first prompt, whatever it was read as
    return Decoded(text.replace("\r\n", "\n").replace("\r", "\n"), encoding, notes)


def detect(content: bytes) -> tuple[str, tuple[str, ...]]:
    """(a key of ENCODINGS, notes)."""
    if content.startswith(codecs.BOM_UTF8):
        return "utf-8-sig", ()
    if content[:4] in (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE):
        raise RequestError("The file is UTF-32, which is not read; save it as UTF-8.")
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return "utf-16", ()
    head = content[:10_000]
    if len(content) % 2 == 0 and head.count(0) * 3 > len(head):  # Latin text in UTF-16 has a zero in nearly every pair
        even, odd = head[::2].count(0), head[1::2].count(0)
        if max(even, odd) > 20 * min(even, odd):
            name = "utf-16-le" if odd > even else "utf-16-be"
            return name, (f"The file has no mark of its encoding; its zero bytes lie as in {ENCODINGS[name]}.",)
    try:
        content.decode("utf-8")
        return "utf-8", ()
    except UnicodeDecodeError:
        damaged = _damaged_utf8(content)
    if damaged:
        return "utf-8", (f"The file is UTF-8 but for {damaged:,} {'byte' if damaged == 1 else 'bytes'}; the rows that hold them are "
                         "refused.",)
    return _single_byte(content)


def _damaged_utf8(content: bytes) -> int:
    """How many bytes keep the file from being UTF-8, if it plainly was meant to be; 0 if it was not.

    In cp1250 or cp1252 text hardly two letters in a row look like one UTF-8 character, so whole characters outweigh strays.
    """
    text = content.decode("utf-8", "surrogateescape")
    strays = sum(map(text.count, map(chr, range(0xDC80, 0xDD00))))
    whole = len(re.findall(r"[\u0080-\ud7ff\ue000-\U0010ffff]", text))
    return strays if whole > 2 * strays else 0


def _single_byte(content: bytes) -> tuple[str, tuple[str, ...]]:
    sample = _evidence(content)
    scores: dict[str, tuple[float, int]] = {}  # encoding → (score, place in _ALPHABETS) of its best language
    for place, (language, letters, encodings) in enumerate(_ALPHABETS):
        for encoding in encodings:
            score = _score(sample, encoding, language, frozenset(letters + letters.upper()))
            if score is not None and score > scores.get(encoding, (float("-inf"), 0))[0]:
                scores[encoding] = score, place
    best = max(scores, key=lambda e: (scores[e][0], -scores[e][1]), default=None)
    if best is None or scores[best][0] <= 0:
        try:
            content.decode("cp1252")
            best = "cp1252"
        except UnicodeDecodeError:
            best = "iso-8859-1"
        return best, (f"The file is not UTF-8 and its bytes fit no language that is looked for; it is read as {ENCODINGS[best]}. "
                      "Check the preview and choose another encoding if letters are wrong.",)
    score, place = scores[best]
    text = sample.decode(best, "replace")
    rivals = [e for e in scores if e != best and scores[e][0] >= 0.9 * score and sample.decode(e, "replace") != text]
    note = f"The file is not UTF-8; its bytes fit {_ALPHABETS[place][0]} text in {ENCODINGS[best]} best."
    if rivals:
        others = " and ".join(f"{_ALPHABETS[scores[e][1]][0]} in {ENCODINGS[e]}" for e in rivals)
        note += f" They also fit {others}: check the letters in the preview."
    return best, (note,)


def _evidence(content: bytes) -> bytes:
    """The pieces between spaces that have bytes past ASCII, up to EVIDENCE bytes of them."""
    pieces, size = [], 0
    for found in re.finditer(rb"[^\s]*[\x80-\xff][^\s]*", content):
        pieces.append(found.group()[:1000])
        size += len(pieces[-1]) + 1
        if size > EVIDENCE:
            break
    return b" ".join(pieces)


def _score(sample: bytes, encoding: str, language: str, letters: frozenset[str]) -> float | None:
    """Letters of the alphabet and signs of text, less half for another language's letter (a name, say) and two for anything else.

    None if it cannot be this encoding.
    """
    try:
        text = sample.decode(encoding)
    except UnicodeDecodeError:
        return None
    score = 0.0
    for found in re.finditer(r"[^\x00-\x7f]", text):
        c, at = found.group(), found.start()
        before, after = text[at - 1 : at], text[at + 1 : at + 3]
        if c in letters:
            # A capital inside a word, or a small letter or a lone capital before a capital: not how words are written.
            odd = before.islower() if c.isupper() else after[:1].isupper()
            odd = odd or (c.isupper() and after[:1].isupper() and after[1:].islower())
            if language == "Polish" and _SOFT.match(text, at):
                odd = True  # before a vowel Polish writes ni, not ń; Spanish ñ stands there
            score += -1 if odd else 1
        elif "\x80" <= c <= "\x9f":
            return None  # a control character: no text has these
        elif c in _SIGNS or (language.startswith("Spanish") and c in _SPANISH):
            inside = before.isalpha() and after[:1].isalpha()
            score += -2 if inside and c not in "’\xad–" else 0.25
        else:
            score -= 0.5 if c in _LETTERS else 2
    return score
