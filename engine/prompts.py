"""From what a person types to the ids the verifier reads.

The chat template is the model's own and is never imitated. Text of a person is data: control tokens written in it
(`<|im_end|>`, `</s>`) go in as letters; only the template writes control tokens.
"""

from __future__ import annotations

import secrets
from typing import Any, Callable, Sequence

from engine.errors import RequestError
from engine.tokens import Vocabulary, lone_surrogate
from engine.trace import Prompt

_RESERVED = frozenset({"messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt",
                       "continue_final_message", "tokenize", "tokenizer_kwargs", "return_dict", "return_tensors"})


def build(vocabulary: Vocabulary, text: str, system: str | None = None, raw: bool = False,
          template_variables: dict[str, Any] | None = None, system_in_user: bool = False,
          context: int | None = None) -> Prompt:
    """The prompt as the model reads it: chat template with the generation prompt, or raw text if `raw` or if the
    model has no template (`template=False` then; its own beginning-of-text id in front, where its tokenizer adds one).

    `template_variables` are further names the template may use, such as `enable_thinking`. `system_in_user` puts the
    system text in front of the person's, for models without a system role. `context`, if given, lets a text that cannot
    fit be refused before it is read; `check_length` judges the ids.

    Raises RequestError for an empty text, a NUL, half a surrogate pair or a character the vocabulary lacks, and for a
    template that refuses or drops a role.
    """
    _check_text(vocabulary, text, "prompt")
    if not text.strip():
        raise RequestError("The prompt is empty; type some text.")
    system = system if system and system.strip() else None
    if system is not None:
        _check_text(vocabulary, system, "system text")
    if context is not None:
        _refuse_hopeless(vocabulary, text, context)
    asked = text if system is None or not system_in_user else f"{system}\n\n{text}"
    role = None if system_in_user else system
    if raw or vocabulary.template is None:
        if role is not None:
            why = "Raw text has" if raw else f"{vocabulary.model} has no chat template and so"
            raise RequestError(f"{why} no system role; {_WAY_OUT}.")
        ids = _encoded(vocabulary, lambda: (*vocabulary.opening, *vocabulary.encode(asked)))
        _require_rows(vocabulary, ids)
        return Prompt(text=text, ids=ids, system=system, raw=raw, template=False)
    ids = _encoded(vocabulary, lambda: _templated(vocabulary, asked, role, template_variables or {}))
    _require_rows(vocabulary, ids)
    return Prompt(text=text, ids=tuple(ids), system=system, raw=False, template=True)


def has_thinking_switch(vocabulary: Vocabulary) -> bool:
    """Whether the chat template heeds `enable_thinking`: whether its text differs with the switch on and off."""
    if vocabulary.template is None:
        return False
    try:
        messages = [{"role": "user", "content": "a"}]
        return (_render(vocabulary, messages, {"enable_thinking": True})
                != _render(vocabulary, messages, {"enable_thinking": False}))
    except Exception:  # a template that fails on this has no usable switch; `build` says what is wrong with it
        return False


def check_length(ids_count: int, max_tokens: int, context: int | None) -> int:
    """How many new tokens fit: `max_tokens`, or what is left of `context` positions. None: no limit known.

    Raises RequestError if not even one fits (or, where `max_tokens` is 0 and the prompt is only read, if the prompt does
    not): the prompt is never cut, a cut prompt is a different experiment.
    """
    if context is None:
        return max_tokens
    if ids_count + min(max_tokens, 1) > context:
        raise RequestError(f"The prompt is too long: {ids_count:,} tokens, limit {context:,}; shorten it.")
    return min(max_tokens, context - ids_count)


def length_note(ids_count: int, max_tokens: int, context: int | None) -> str | None:
    """One sentence if `check_length` allows fewer tokens than asked for, else None."""
    allowed = check_length(ids_count, max_tokens, context)
    if allowed == max_tokens:
        return None
    return (f"At most {allowed:,} new tokens instead of {max_tokens:,}: the prompt takes {ids_count:,} "
            f"of the model's {context:,} positions.")


_WAY_OUT = "leave the system text empty, or put it in front of the user's message"


def _check_text(vocabulary: Vocabulary, text: str, what: str) -> None:
    nul = text.find("\0")
    if nul >= 0:
        raise RequestError(f"Character {nul + 1:,} of the {what} is a NUL byte; take it out.")
    half = lone_surrogate(text)
    if half is not None:
        raise RequestError(f"Character {half + 1:,} of the {what} is half a surrogate pair "
                           f"(U+{ord(text[half]):04X}), not a character; take it out.")
    lost = vocabulary.unreadable(text)
    if lost is not None:
        raise RequestError(f"Character {lost + 1:,} of the {what} (U+{ord(text[lost]):04X}) is not in the vocabulary of "
                           f"{vocabulary.model}, which would leave it out unseen; take it out.")


def _encoded(vocabulary: Vocabulary, encode: Callable[[], Sequence[int]]) -> Sequence[int]:
    """What `encode` gives; RequestError where the tokenizer fails at the text (an unknown word, and no token for one)."""
    try:
        return encode()
    except RequestError:
        raise
    except Exception as e:  # the library raises bare Exception
        raise RequestError(f"The tokenizer of {vocabulary.model} cannot read this text ({_reason(e)}); choose another model.") from None


def _require_rows(vocabulary: Vocabulary, ids: Sequence[int]) -> None:
    """RequestError if the template, or the tokenizer itself, writes a token that the model has no row for."""
    lost = next((i for i in ids if vocabulary.rows is not None and i >= vocabulary.rows), None)
    if lost is not None:
        raise RequestError(f"The token {vocabulary.name(lost)} ({lost:,}) in this prompt has no row in the embedding of {vocabulary.model}, which "
                           f"has {vocabulary.rows:,}: its tokenizer or chat template belongs to another model; try raw text.")


def _refuse_hopeless(vocabulary: Vocabulary, text: str, context: int) -> None:
    least = vocabulary.least_tokens(text.strip())  # templates may trim
    if least > context:
        raise RequestError(f"The prompt is too long: at least {least:,} tokens, limit {context:,}; shorten it.")


def _render(vocabulary: Vocabulary, messages: list[dict[str, str]], variables: dict[str, Any]) -> str:
    return vocabulary.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **variables)


def _messages(text: str, system: str | None) -> list[dict[str, str]]:
    head = [] if system is None else [{"role": "system", "content": system}]
    return [*head, {"role": "user", "content": text}]


def _templated(vocabulary: Vocabulary, text: str, system: str | None, variables: dict[str, Any]) -> list[int]:
    reserved = sorted(_RESERVED & set(variables))
    if reserved:
        raise RequestError(f"{reserved[0]} is not a template variable of {vocabulary.model}.")
    _probe(vocabulary, system is not None, variables)
    return vocabulary.encode_parts(rendered_parts(vocabulary, text, system, variables))


def rendered_parts(vocabulary: Vocabulary, text: str, system: str | None, variables: dict[str, Any],
                   change: Callable[[str, str], str] = lambda content, role: content) -> list[tuple[str, bool]]:
    """The rendered template in parts for `Vocabulary.encode_parts`; joined they are what the model reads.

    The template sees the contents with a secret word in place of each control token, and may trim or move them. In what
    it wrote, control tokens are then its own (True), and the secret words turn back into letters (False). `change` may
    put something else in place of a content, control tokens hidden, before the template sees it; it gets the role too.
    """
    secret = new_secret()
    hidden: list[str] = []

    def hide(content: str, role: str) -> str:
        def word(match) -> str:
            hidden.append(match[0])
            return f"{secret}:{len(hidden) - 1}:"
        return change(vocabulary.control_pattern.sub(word, content), role)

    try:
        rendered = _render(vocabulary, _messages(hide(text, "user"), None if system is None else hide(system, "system")), variables)
    except Exception as e:
        raise RequestError(f"The chat template of {vocabulary.model} fails on this text: {_reason(e)}; "
                           "try raw text.") from None
    pieces = rendered.split(secret)
    parts = [(pieces[0], True)]
    for piece in pieces[1:]:
        _, number, rest = piece.split(":", 2)
        parts += [(hidden[int(number)], False), (rest, True)]
    return parts


def _probe(vocabulary: Vocabulary, with_system: bool, variables: dict[str, Any]) -> None:
    """Raise RequestError if the template refuses the messages or leaves one of them out without a word."""
    user, system = new_secret(), new_secret()
    name = vocabulary.model
    try:
        plain = _render(vocabulary, _messages(user, None), variables)
    except Exception as e:  # templates are programs: any error may come out of one
        plain, failure = None, e
    if not with_system:
        if plain is None:
            raise RequestError(f"The chat template of {name} fails: {_reason(failure)}; try raw text.")
        if user not in plain:
            raise RequestError(f"The chat template of {name} leaves the user's text out; try raw text.")
        return
    try:
        both = _render(vocabulary, _messages(user, system), variables)
    except Exception as e:
        if plain is None:
            raise RequestError(f"The chat template of {name} fails: {_reason(e)}; try raw text.") from None
        raise RequestError(f"{name} refuses the role system ({_reason(e)}); {_WAY_OUT}.") from None
    if system not in both:
        raise RequestError(f"{name} ignores the role system: its chat template leaves the text out; {_WAY_OUT}.")
    if user not in both:
        raise RequestError(f"The chat template of {name} leaves the user's text out; try raw text.")


def new_secret() -> str:
    """A word nobody types. Digits, so that a template that changes case leaves it whole."""
    return str(10**19 + secrets.randbelow(10**19))


def _reason(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:160].rstrip(".")
