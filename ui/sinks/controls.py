"""What the Sinks page asks for: prompts, the model, and what reading them will take."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from html import escape

import streamlit as st

from engine.attention import forecast
from engine.errors import RequestError
from engine.models.registry import Entry, config
from engine.models.source import locate
from engine.request import Asked, SinksRequest, Written
from engine.trace import SinkItem, SinksRun
from ui import onemodel, promptset, session, taking
from ui.preview import letters

PREFIX = "sinks"
ANSWERS = "speclens.sinks.answers"  # answers of a run to be read in place of a prompt; plain data of the session, no widget's key
COUNTED = 200_000  # characters: a longer text is not counted while somebody types, but told from its length
DEFAULT = ("The lighthouse keeper counted the ships every evening. When the fog came in from the north, he lit the lamp an hour early and rang "
           "the bell, once for every boat he could not see. In the morning he wrote the number in a book with a blue cover, and the book was "
           "almost full.")


def draw(models: list[Entry]) -> SinksRequest:
    """Draw every control but Run and Stop; returns what is asked for now."""
    given = st.session_state.get(ANSWERS) or ()
    if given:
        answer_line(given)
    else:
        found = promptset.asked(promptset.draw(PREFIX, DEFAULT, ready=tuple(promptset.BUILTIN)))
    how = onemodel.draw(PREFIX, models)
    if given:  # what it was read with is the answer's own, and no text is rendered anew
        how |= {"system": given[0].written.prompt.system, "raw": given[0].written.prompt.raw}
    return SinksRequest(given or found, **how)


def answer_line(given: tuple[Asked, ...]) -> None:
    """Where a prompt is typed: the answer that is read instead, and the way back."""
    first = given[0].written
    many = "" if len(given) == 1 else f" and {len(given) - 1} more"
    counts = f"{len(first.prompt.ids):,} tokens of prompt and {len(first.ids):,} of its answer{many}, read as they stand"
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="sinks-answer"):
        session.draw(f'<p class="sl"><b>{escape(first.source[:1].upper() + first.source[1:])}</b> · “{escape(letters(first.prompt.text, 80))}” · '
                     f'<span class="quiet">{escape(counts)}</span></p>', width="content")
        st.button("Type a prompt instead", key="sinks.answer.drop", on_click=st.session_state.update, args=({ANSWERS: ()},), type="tertiary")


def trouble(asked: SinksRequest) -> str | None:
    """The one sentence to show if `asked` cannot even be tried, else None."""
    if not asked.prompts:
        return "There is no prompt to read; type one, or choose a set or a file."
    if not asked.model:
        return "No model is chosen; pick one, or type a hub id, a folder or a .gguf file."
    return None


def forecast_html(asked: SinksRequest, last: tuple[SinksRun, int] | None) -> str:
    """The longest prompt's time and memory, beside Run. `last`: the reading on screen, from which time is told."""
    if trouble(asked):
        return ""
    try:
        facts = config(asked.model)
        whole = [len(p.written.prompt.ids) + len(p.written.ids) for p in asked.prompts if p.written]
        tokens = max(whole) if whole else _count(asked.model, max((p.text for p in asked.prompts), key=len))
        pace = None
        if last is not None and last[0].models["model"].name == asked.model and last[0].items[last[1]].seconds:
            item = last[0].items[last[1]]
            pace = forecast.Pace(len(item.prompt.ids), item.seconds)
        words = forecast.forecast(facts, tokens, pace).sentence
        many = (f"the longest of {len(asked.prompts)} prompts, " if len(asked.prompts) > 1 else "") + ("" if whole else "about ")
        limit = facts.get("context")
        warn = f" That is over the model's {limit:,} positions." if limit and tokens > limit else ""
        return f'<span class="sl quiet" role="status">{escape(many + words + "." + warn)}</span>'
    except RequestError as e:
        return f'<span class="sl quiet" role="status">{escape(str(e))}</span>'
    except (KeyError, TypeError, ValueError):  # a model whose config has no sizes to tell from: the loader says what is wrong
        return ""


def _count(model: str, text: str) -> int:
    """About how many tokens a prompt will be: its text's, counted where the tokenizer lies at hand, and a dozen for the template."""
    reader = _reader(model) if len(text) <= COUNTED else None
    text = session.showable(text)
    return 12 + (len(reader.encode(text, add_special_tokens=False).ids) if reader else -(-len(text.encode()) // 4))


@lru_cache(maxsize=4)
def _reader(model: str):
    """The model's tokenizer, without transformers, which takes seconds to import; None where it has no tokenizer.json."""
    file = locate(model) / "tokenizer.json"
    if not file.is_file():
        return None
    from tokenizers import Tokenizer
    return Tokenizer.from_file(str(file))


def last_reading(run: SinksRun | None) -> tuple[SinksRun, int] | None:
    """The run on screen and the longest of its prompts that was timed."""
    timed = [i for i, item in enumerate(run.items) if item.seconds] if run is not None else []
    return (run, max(timed, key=lambda i: len(run.items[i].prompt.ids))) if timed else None


def request_of(run: SinksRun) -> SinksRequest:
    """The request that made `run`, to compare with the controls or to fill them."""
    facts, first = run.models["model"], run.items[0].prompt if run.items else None
    return SinksRequest(tuple(Asked(i.prompt.text, i.label, i.category, _written(run, i)) for i in run.items), facts.name, first.system if first else None,
                        first.raw if first else False, facts.backend, facts.asked_device, facts.asked_dtype)


def _written(run: SinksRun, item: SinkItem) -> Written | None:
    """The answer that was read, so that it can be read again without the run it comes from; None for a prompt alone."""
    ids, start = item.prompt.ids, item.answer_start
    if start is None:
        return None
    tokens = tuple((i, run.tokens[i]) for i in sorted(set(ids)) if i in run.tokens)
    return Written(item.source, run.models["model"].title, replace(item.prompt, ids=ids[:start]), ids[start:], tokens)


def fill(asked: SinksRequest) -> None:
    """Set the controls to `asked`, as far as they can take it."""
    st.session_state[ANSWERS] = tuple(p for p in asked.prompts if p.written)
    if not st.session_state[ANSWERS]:
        promptset.fill(PREFIX, asked.prompts)
    session.put(taking.taken(onemodel.values(asked)), PREFIX)


def left(asked: SinksRequest, shown: SinksRun) -> list[str]:
    """What `fill` cannot take of the request that made `shown`, in words."""
    of_prompts = [] if any(p.written for p in asked.prompts) else promptset.left(asked.prompts, shown.items)
    return of_prompts + taking.left(onemodel.values(asked))


def changes(asked: SinksRequest, shown: SinksRequest) -> list[str]:
    """What differs between the controls and the run on screen."""
    texts = [(session.showable(p.text), p.written and p.written.ids) for p in asked.prompts] != [
        (session.showable(p.text), p.written and p.written.ids) for p in shown.prompts]
    return (["prompts" if len(shown.prompts) > 1 else "prompt"] if texts else []) + onemodel.changes(asked, shown)
