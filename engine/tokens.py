"""Tokens as bytes: what every id of a vocabulary stands for, text assembled from them, invisible characters made visible.

Nothing here knows a model. A `Vocabulary` reads how its tokenizer spells bytes from the tokenizer's own pipeline
(tokenizer.json: normalizer, pre_tokenizer, model, decoder), never from a class name.
"""

from __future__ import annotations

import codecs
import re
import secrets
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from engine import spelling
from engine.errors import RequestError


class Vocabulary:
    """A transformers fast tokenizer, seen as ids and bytes. `model` is what messages call its model.

    `scheme` says how tokens spell bytes; `special` are the ids flagged special (end of text, chat marks); `control` are
    those and the other added tokens that the chat template writes (`<think>`, say): the ids that typed text never becomes.
    """

    def __init__(self, tokenizer: Any, model: str | None = None):
        if not getattr(tokenizer, "is_fast", False):
            raise RequestError(f"The tokenizer of {model or 'this model'} has no tokenizer.json; only such tokenizers can be read.")
        self.tokenizer = tokenizer
        self.model = model or str(getattr(tokenizer, "name_or_path", "") or "this model")
        self._pipeline = spelling.pipeline_of(tokenizer.backend_tokenizer)
        self._ids: dict[str, int] = tokenizer.get_vocab()
        self._token_of: dict[int, str] = {i: token for token, i in self._ids.items()}
        added = tokenizer.added_tokens_decoder
        self._added: dict[int, str] = {i: token.content for i, token in added.items()}
        self.special: frozenset[int] = frozenset(
            {i for i, token in added.items() if token.special} | set(tokenizer.all_special_ids))
        # A token of white space, as Gemma has for line breaks, is ordinary text though templates write it too.
        template = self.template or ""
        self.control: frozenset[int] = self.special | {
            i for i, content in self._added.items() if content in template and not content.isspace()}
        self.scheme = spelling.scheme(self._pipeline)
        self._nonce = secrets.token_hex(8)
        self.added = frozenset(added)  # ids beside the tokenizer's own pieces
        self.rows, self._rowless = None, frozenset()

    def limit(self, rows: int) -> None:
        """The model has so many rows of embedding: the text of added tokens past them is read as letters. To be said before encoding."""
        self.rows, self._rowless = rows, frozenset(i for i in self.added if i >= rows)

    @classmethod
    def load(cls, folder: str | Path, model: str | None = None) -> Vocabulary:
        """Read the tokenizer in `folder`. Nothing is fetched and no code of the folder is run.

        Raises RequestError if there is none, or if it cannot be read.
        """
        folder = Path(folder)
        called = model or str(folder)
        if not folder.is_dir():
            raise RequestError(f"There is no folder {folder}.")
        if not any((folder / f).is_file() for f in ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")):
            raise RequestError(f"{called} has no tokenizer: tokenizer.json is missing in {folder}.")
        from transformers import AutoTokenizer  # seconds to import, so not before it is needed

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        except Exception as e:  # transformers raises anything from OSError to bare Exception here
            why = " ".join(str(e).split())[:200]
            raise RequestError(f"The tokenizer of {called} cannot be read ({type(e).__name__}: {why}).") from None
        return cls(tokenizer, called)

    @cached_property
    def template(self) -> str | None:
        """The chat template, or None if the model has none."""
        if not getattr(self.tokenizer, "chat_template", None):
            return None
        try:
            return self.tokenizer.get_chat_template()
        except ValueError:  # several templates, none of them the default
            return None

    @cached_property
    def size(self) -> int:
        """Usable ids: every id is below this. A model's logits may be wider (padding)."""
        return max(self._token_of, default=-1) + 1

    @cached_property
    def usable(self) -> int:
        """`size` without the padding tokens at its end (`spelling.PADDING`)."""
        return max((i for i, token in self._token_of.items() if not spelling.PADDING.fullmatch(token)), default=-1) + 1

    def known(self, token_id: int) -> bool:
        return token_id in self._token_of

    def ids_by_token(self) -> dict[str, int]:
        """Every token as the tokenizer spells it → its id, added tokens included. For comparing two vocabularies."""
        return dict(self._ids)

    def bytes_of(self, token_id: int) -> bytes:
        """The exact bytes this token adds to a text; b"" for an id the vocabulary lacks. Special tokens: their own text.

        A SentencePiece space mark is a space here, also the one that only marks the start of a text: see `text_of`.
        """
        return self._bytes.get(token_id, b"")

    @cached_property
    def _bytes(self) -> dict[int, bytes]:
        spell = spelling.speller(self._pipeline)
        return {i: token.encode() if i in self.special else spell(token, i in self._added)
                for i, token in self._token_of.items()}

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token that typed text can become."""
        return max((len(b) for i, b in self._bytes.items() if i not in self.control), default=1) or 1

    def least_tokens(self, text: str) -> int:
        """A count that the ids of `text` cannot fall below, found without encoding; 0 where no such bound holds."""
        shrink = spelling.shrink_bound(self._pipeline)
        return 0 if shrink is None else len(text.encode()) // (self.longest * shrink)

    def unreadable(self, text: str) -> int | None:
        """Index of the first character that `encode` would lose, in whole or part, because the vocabulary lacks it."""
        lost = {c for c in set(text) if not self._missing.isdisjoint(c.encode("utf-8", "surrogatepass"))}
        return next((i for i, c in enumerate(text) if c in lost), None) if lost else None

    @cached_property
    def _missing(self) -> frozenset[int]:
        if getattr(self.tokenizer.backend_tokenizer.model, "unk_token", None) is not None:
            return frozenset()
        return spelling.missing_bytes(self._pipeline, self._ids)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` alone: nothing added in front or behind, and a control token's text in it stays letters.

        Raises RequestError for a lone surrogate, which is no character.
        """
        return self.encode_parts([(text, False)])

    def encode_parts(self, parts: Iterable[tuple[str, bool]]) -> list[int]:
        """Ids of the parts' texts joined and read as one text; a part marked True may hold control tokens.

        Joined before encoding, so that tokens may span parts just as if the text had been written in one go.
        """
        parts = list(parts)
        text = "".join(part for part, _ in parts)
        require_characters(text)
        meant = [self._control_text[m[0]] for part, may_control in parts if may_control
                 for m in self.control_pattern.finditer(part)]
        backend = self.tokenizer.backend_tokenizer
        if backend.truncation is None and backend.padding is None:
            # The tokenizer as it is will do where its control tokens come out just as meant; unknown words aside.
            ids = backend.encode(text, add_special_tokens=False).ids
            unknown = self.tokenizer.unk_token_id
            if [i for i in ids if i in self.control and i != unknown] == [i for i in meant if i != unknown] and not (
                    unknown is not None and self.tokenizer.unk_token in text) and self._rowless.isdisjoint(ids):
                return ids
        renamed = "".join(self.control_pattern.sub(lambda m: self._mark(self._control_text[m[0]]), part)
                          if may_control else part for part, may_control in parts)
        return self._letters.encode(renamed, add_special_tokens=False).ids

    def spans(self, text: str, special: bool = False) -> list[tuple[int, int, int]]:
        """(id, start, end) of every token of `text`, in characters, as the tokenizer itself reports them.

        Where it rewrites the text these spans may overlap or leave gaps. `special`: control tokens' text counts as them.
        """
        require_characters(text)
        pieces, origin, at = [], [], 0  # origin[i]: where character i of the renamed text stands in `text`
        for m in self.control_pattern.finditer(text) if special else ():
            mark = self._mark(self._control_text[m[0]])
            pieces += [text[at:m.start()], mark]
            origin += [*range(at, m.start()), *[m.start()] * len(mark)]
            at = m.end()
        encoding = self._letters.encode("".join([*pieces, text[at:]]), add_special_tokens=False)
        origin += range(at, len(text) + 1)
        return [(i, origin[start], origin[end]) for i, (start, end) in zip(encoding.ids, encoding.offsets)]

    @cached_property
    def _control_text(self) -> dict[str, int]:
        return {self._token_of[i]: i for i in self.control if self._token_of.get(i)}

    @cached_property
    def control_pattern(self) -> re.Pattern:
        """Matches the text of any control token, the longest first as the tokenizer does; nothing if there is none."""
        texts = sorted(self._control_text, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def _mark(self, token_id: int) -> str:
        return f"<{self._nonce}x{token_id}>"

    @cached_property
    def _letters(self) -> Any:
        """The same tokenizer with every control token renamed to a secret word.

        `split_special_tokens` is not enough: it lets added tokens without the special flag through, and a Unigram or
        word-level model still finds `</s>` among its own pieces. Nobody can type the secret, and a template's control
        tokens, renamed alike, keep their ids and their way of swallowing white space.
        """
        names = {self._token_of[i]: self._mark(i) for i in self.control | self._rowless if i in self._token_of}
        return spelling.renamed(self.tokenizer.backend_tokenizer, names)

    @cached_property
    def opening(self) -> tuple[int, ...]:
        """What the tokenizer itself puts in front of a raw text: () or its beginning-of-text id."""
        bare = list(self.tokenizer("a", add_special_tokens=False)["input_ids"])
        full = list(self.tokenizer("a", add_special_tokens=True)["input_ids"])
        for start in range(len(full) - len(bare) + 1):
            if bare and full[start:start + len(bare)] == bare:
                return tuple(full[:start])
        return ()

    def text_of(self, ids: Sequence[int], first: bool = True, special: bool = False) -> str:
        """The text of `ids`, from their bytes. Bytes that are no UTF-8 are left out (see `Assembler`).

        `first`: the ids begin a text, so the space that only marks its start is taken off, as the tokenizer's own
        decoder does. `special`: keep special tokens as their literal text.
        """
        assembler = Assembler()
        kept = b"".join(self.bytes_of(i) for i in ids if special or i not in self.special)
        text = assembler.feed(kept) + assembler.finish()
        return self.without_mark(text) if first else text

    def without_mark(self, text: str) -> str:
        """`text`, the beginning of a text, without the space that only marks its start."""
        return text[1:] if self._marks_start and text.startswith(" ") else text

    @cached_property
    def _marks_start(self) -> bool:
        return spelling.marks_start(self._pipeline)

    @cached_property
    def marks_end(self) -> bool:
        """Whether the end of a word is spelled as a space, also where none follows."""
        return spelling.marks_end(self._pipeline)

    def name(self, token_id: int) -> str:
        """A short readable name (see `label`); ⟨id 60000⟩ for an id the vocabulary lacks."""
        if not self.known(token_id):
            return f"⟨id {token_id}⟩"
        return label(self.bytes_of(token_id), token_id in self.special)


class Assembler:
    """Token bytes in, complete characters out.

    An incomplete character waits for its remaining bytes. Bytes that can be no UTF-8, whatever follows, are left out
    of the text (they stay in the tokens) and counted in `dropped`; U+FFFD is never put in their place. A U+FFFD comes
    out only where the bytes really spell it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._fed = self._given = 0
        self.dropped = 0

    def feed(self, data: bytes) -> str:
        """The characters that `data` completes; may be empty."""
        self._fed += len(data)
        return self._give(self._decoder.decode(data))

    def finish(self) -> str:
        """End of the text: whatever is still waiting is no character and is left out. Returns "" for that reason."""
        text = self._give(self._decoder.decode(b"", True))
        self.dropped = self._fed - self._given
        return text

    def _give(self, text: str) -> str:
        self._given += len(text.encode())
        return text


# Characters that draw nothing though Unicode calls them letters, symbols or marks.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zs", "Zl", "Zp"))
_SHOWN = {" ": "·", "\t": "→", "\n": "⏎"}
_SIGNS = frozenset("·→⏎⟨⟩")  # our own signs, when they are typed, are shown by number: no two texts look alike


def visible(text: str) -> str:
    """`text` with nothing invisible in it: · space, → tab, ⏎ line break, ⟨U+00A0⟩ for the rest, ⟨empty⟩ for none.

    Different texts have different visible forms. For display only: exports and copied text keep the original.
    """
    if not text:
        return "⟨empty⟩"
    return "".join(_shown(c, i == 0) for i, c in enumerate(text))


@lru_cache(maxsize=65536)  # a ribbon names the same few thousand tokens again and again
def label(raw: bytes, special: bool = False) -> str:
    """A token's short readable name from its bytes: ⟨im_end⟩ for a special one, visible text for others, "byte F0" for
    part of a character."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return ("byte " if len(raw) == 1 else "bytes ") + raw.hex(" ").upper()
    if not special or not text:
        return visible(text)
    return f"⟨{visible(text.strip('<>[]|｜') or text)}⟩"


def own_text(raw: bytes) -> str:
    """The text of a token's bytes; "" where they hold only part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


def hidden(c: str) -> bool:
    """Whether a character shows nothing, or reorders what follows it: controls, direction marks, blanks but the plain
    space, tab and line break, which have signs of their own."""
    return c not in _SHOWN and (unicodedata.category(c) in _UNSEEN or c in _BLANK)


def code_name(c: str) -> str:
    """What stands between ⟨ ⟩ for a character that is not drawn."""
    return {"\r": "CR", "\x00": "NUL"}.get(c, f"U+{ord(c):04X}")


def _shown(c: str, leading: bool) -> str:
    if c in _SHOWN:
        return _SHOWN[c]
    by_name = (hidden(c) or c in _SIGNS or 0xFE00 <= ord(c) <= 0xFE0F or 0xE0100 <= ord(c) <= 0xE01EF
               or (leading and unicodedata.category(c).startswith("M")))  # a mark with no letter before it lands on the neighbour
    return f"⟨{code_name(c)}⟩" if by_name else c


def require_characters(text: str) -> None:
    """RequestError if `text` holds half a surrogate pair, which is no character and has no UTF-8."""
    position = lone_surrogate(text)
    if position is not None:
        raise RequestError(f"Character {position + 1} of the text is half a surrogate pair (U+{ord(text[position]):04X}), "
                           "not a character; take it out.")


def lone_surrogate(text: str) -> int | None:
    """Index of the first half of a surrogate pair in `text`, if any."""
    try:
        text.encode()
    except UnicodeEncodeError as e:
        return e.start
    return None
