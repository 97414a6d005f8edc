"""What the Sinks page asks for: prompts, the model, and what reading them will take."""

from __future__ import annotations

from functools import lru_cache
from html import escape

from engine.attention import forecast
from engine.errors import RequestError
from engine.models.registry import Entry, config
from engine.models.source import locate
from engine.request import Asked, SinksRequest
from engine.trace import SinksRun
from ui import onemodel, promptset, session, taking

PREFIX = "sinks"
COUNTED = 200_000  # characters: a longer text is not counted while somebody types, but told from its length
DEFAULT = ("The lighthouse keeper counted the ships every evening. When the fog came in from the north, he lit the lamp an hour early and rang "
           "the bell, once for every boat he could not see. In the morning he wrote the number in a book with a blue cover, and the book was "
           "almost full.")


def draw(models: list[Entry]) -> SinksRequest:
    """Draw every control but Run and Stop; returns what is asked for now."""
    found = promptset.draw(PREFIX, DEFAULT, ready=tuple(promptset.BUILTIN))
    how = onemodel.draw(PREFIX, models)
    return SinksRequest(promptset.asked(found), **how)


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
        longest = max((p.text for p in asked.prompts), key=len)
        tokens = _count(asked.model, longest)
        pace = None
        if last is not None and last[0].models["model"].name == asked.model and last[0].items[last[1]].seconds:
            item = last[0].items[last[1]]
            pace = forecast.Pace(len(item.prompt.ids), item.seconds)
        words = forecast.forecast(facts, tokens, pace).sentence
        many = f"the longest of {len(asked.prompts)} prompts, about " if len(asked.prompts) > 1 else "about "
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
    return SinksRequest(tuple(Asked(i.prompt.text, i.label, i.category) for i in run.items), facts.name, first.system if first else None,
                        first.raw if first else False, facts.backend, facts.asked_device, facts.asked_dtype)


def fill(asked: SinksRequest) -> None:
    """Set the controls to `asked`, as far as they can take it."""
    promptset.fill(PREFIX, asked.prompts)
    session.put(taking.taken(onemodel.values(asked)), PREFIX)


def left(asked: SinksRequest, shown: SinksRun) -> list[str]:
    """What `fill` cannot take of the request that made `shown`, in words."""
    return promptset.left(asked.prompts, shown.items) + taking.left(onemodel.values(asked))


def changes(asked: SinksRequest, shown: SinksRequest) -> list[str]:
    """What differs between the controls and the run on screen."""
    texts = [p.text for p in asked.prompts] != [session.showable(p.text) for p in shown.prompts]
    return (["prompts" if len(shown.prompts) > 1 else "prompt"] if texts else []) + onemodel.changes(asked, shown)
