"""The card of one prompt's sinks: it must explain itself when all that is left of it is a screenshot."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any, Sequence

from engine import stamps
from engine.attention.view import SinkView, anomalous_rows, structural_rows
from engine.trace import SinkItem, SinksRun
from ui.card import lines, machine_words, model_words, wanted
from ui.ribbon import number
from ui.sinks import ribbon
from ui.sinks.ribbon import z_words

ROWS = 40  # of a table in a card; the files hold all
Z_HELP = ("z = (ln a − median) / (1.4826 · MAD) of the attention a that tokens outside the template receive. The median of an even number "
          "of values is the midpoint of the two in the middle: of ln a = −6, −5, −3, −2 it is −4, the MAD 1.5, and z = −0.8993, −0.4497, 0.4497, 0.8993.")
CORRECTED_HELP = ("z of what is comparable: a token seen by fewer than 64 queries against others at as many of their next queries, all others against "
                  "each other, less the trend with the number of queries")
OPENING = "Any text has this sink at its first position, whatever token stands there; health does not count it."
COLUMNS = (("position", ""), ("token", ""), ("attention", "Mean over layers, heads and the queries that see the token"), ("z", Z_HELP),
           ("z′", CORRECTED_HELP), ("queries", "How many queries see the token"), ("sink?", ""))

CSS = ribbon.CSS + """
.sl .two{display:grid;grid-template-columns:1fr 1fr;gap:18px} .sl .two>section{min-width:0}
.sl .two h3{font-size:13px;font-weight:600;margin:0 0 6px;padding:0} .sl .two h3 small{font-weight:400;color:var(--quiet)}
.sl .scroll{max-height:21em;overflow:auto;scrollbar-width:thin;border:1px solid var(--line);border-radius:6px}
.sl table.keys{display:table;border-collapse:collapse;width:100%;margin:0;font-size:12.5px;font-variant-numeric:tabular-nums}
.sl .keys-head{position:sticky;top:0;background:var(--area)}
.sl table.keys :is(th,td){padding:3px 8px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line);font-weight:400}
.sl table.keys th{color:var(--quiet)} .sl table.keys :is(th,td):nth-child(2){text-align:left;font-family:ui-monospace,Menlo,Consolas,
  'DejaVu Sans Mono',monospace;max-width:16ch;overflow:hidden;text-overflow:ellipsis}
.sl table.keys tr.on td{font-weight:650}
.sl .score{display:flex;flex-wrap:wrap;gap:4px 26px;align-items:baseline}
.sl .score .big{font-size:30px;font-weight:650;letter-spacing:-.02em} .sl .score small{font-size:13px;color:var(--quiet)}
@media (max-width:640px){.sl .two{grid-template-columns:1fr}}
"""


@dataclass(frozen=True)
class Chosen:
    """What the view was made with, for the caption: None is all of them."""

    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    exclude_structural: bool = True


def card_html(run: SinksRun, item: SinkItem, view: SinkView, chosen: Chosen = Chosen(), *, start: int = 0,
              count: int | None = ribbon.WINDOW, prompt: bool = False) -> str:
    """One prompt's card; needs `ui.theme.css()` and `CSS` on the page. `start`, `count`: the tokens that are drawn."""
    mark = "" if run.status == "done" else f'<span class="mark">{escape(run.status)}</span>'
    length = len(view.ids)
    parts = [f'<p class="headline">{escape(view.sentence)}{mark}</p>', score_html(view)]
    if prompt:
        parts.append(f'<p class="prompt">{lines(item.prompt.text)}</p>')
    if item.answer_start is not None:
        parts.append(f'<p class="round-line">{escape(item.source[:1].upper() + item.source[1:])}: {escape(length_words(item))}, read as they stand.</p>')
    shown = min(length, start + count) - start if count is not None else length
    if shown < length:
        parts.append(f'<p class="round-line">Tokens {start:,} to {start + shown - 1:,} of {length:,}; the tables and charts cover all.</p>')
    parts += [ribbon.ribbon_html(run, item, view, start, count), ribbon.legend_html(view), tables_html(run, view)]
    if run.notes:
        parts.append('<ul class="notes">' + "".join(f"<li>{escape(n)}</li>" for n in dict.fromkeys(run.notes)) + "</ul>")
    parts.append(f'<p class="caption">{escape(caption(run, item, view, chosen))}</p>')
    return f'<article class="sl card" aria-label="Attention sinks">{"".join(parts)}</article>'


def score_html(view: SinkView) -> str:
    """Health as a number and a word, the published formula beside it, and where all attention went."""
    h = view.health
    big = "n/a" if h.value is None else f"{h.value:.1f}"
    published = "n/a" if view.health_published is None else f"{view.health_published:.1f}"
    why = "" if view.published_reason is None else f": {view.published_reason}"
    drained = "n/a" if h.drained is None else share(h.drained)
    by_answer = "" if h.drained_answer is None else f", {share(h.drained_answer)} by the answer"
    opening = f"<small>opening sink, not counted: {share(h.opening_held)}</small>" if has_opening(view) else ""
    learned = "" if view.learned_share is None else f"<small>learned sinks (no token): {share(view.learned_share)}</small>"
    meaning = ("10 × (1 − drained)⁴, where drained is the share of all attention that tokens outside the template hold above what "
               "typical tokens get, counted softly from the threshold on. The sink that any text has at its first position is not counted")
    return (f'<div class="score"><span title="{escape(meaning)}"><span class="big">{big}</span> of 10 <b>{escape(h.word or "")}</b></span>'
            f'<small>published formula: {published}{escape(why)}</small>'
            f"<small>drained outside the template: {drained} of all attention{by_answer}</small>{opening}"
            f"<small>held by the template: {share(view.structural_share)}</small>{learned}</div>")


def has_opening(view: SinkView) -> bool:
    """Whether a sink outside the template is the one that any text has, which is shown and not counted."""
    return bool(view.sinks[list(view.health.opening)].any())


def share(value: float) -> str:
    """A share of all attention as a percentage; what would round to nothing says so."""
    return "under 0.1 %" if 0 < value < 0.001 else f"{value * 100:.1f} %"


def tables_html(run: SinksRun, view: SinkView) -> str:
    """The template's tokens, and the sinks outside it."""
    anomalous = anomalous_rows(view, run.tokens, run.special)
    structural = structural_rows(view, run.tokens, run.special)
    none = "No token outside the template reaches the threshold."
    part = view.answer_start is not None
    return ('<div class="two">'
            + _table("Structural", f"{len(structural)} of {len(view.ids):,} tokens", structural, "The prompt has no template tokens.")
            + _table("Anomalous", f"sinks outside the template: {counted(view)}", anomalous, none, part) + "</div>")


def counted(view: SinkView) -> str:
    """How many sinks health counts, of how many tokens, and what it leaves out."""
    content = len(view.ids) - int(view.structural.sum())
    return f"{view.health.count} of {content:,} tokens" + (", and the opening sink" if has_opening(view) else "")


def _table(title: str, count: str, rows: Sequence[dict[str, Any]], empty: str, part: bool = False) -> str:
    head = f"<h3>{escape(title)} <small>{escape(count)}</small></h3>"
    if not rows:
        return f'<section>{head}<p class="quiet">{escape(empty)}</p></section>'
    columns = [*COLUMNS, *([("part", "Whose token it is: the prompt's or the answer's")] if part else [])]
    body = "".join(_row(row, part) for row in rows[:ROWS])
    more = f'<p class="quiet">and {len(rows) - ROWS:,} more, in the CSV file</p>' if len(rows) > ROWS else ""
    return (f'<section>{head}<div class="scroll" tabindex="0"><table class="keys"><thead class="keys-head"><tr>'
            + "".join(f'<th scope="col"{f" title={chr(34)}{escape(why)}{chr(34)}" if why else ""}>{c}</th>' for c, why in columns)
            + f"</tr></thead><tbody>{body}</tbody></table></div>{more}</section>")


def _row(row: dict[str, Any], part: bool) -> str:
    cells = (str(row["index"]), row["text"], number(row["attention"]), _z(row["z"]), _z(row["z_corrected"]), f"{row['queries']:,}",
             sink_word(row), *([row["segment"]] if part else []))
    why = row["why"] or (OPENING if row["opening"] else "")
    return (f'<tr{" class=on" if row["sink"] else ""}{f" title={chr(34)}{escape(why)}{chr(34)}" if why else ""}>'
            + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>")


def sink_word(row: dict[str, Any]) -> str:
    """What stands under "sink?"."""
    return "no" if not row["sink"] else "opening" if row["opening"] else "sink"


def _z(value: float | None) -> str:
    return "n/a" if value is None else z_words(value)


def caption(run: SinksRun, item: SinkItem, view: SinkView, chosen: Chosen = Chosen()) -> str:
    """One line that says what was read, with what, how it was scored and when; the same in every export."""
    parts = []
    for facts in run.models.values():
        parts += [f"model {model_words(facts)}", f"{facts.backend} {facts.backend_version}"]
        if "transformers" in run.machine.packages:
            parts.append(f"transformers {run.machine.packages['transformers']}")
        parts.append(f"{machine_words(run)}, {wanted(facts.device, facts.asked_device)}")
        parts.append(f"{_some(chosen.layers, facts.layers, 'layer')}, {_some(chosen.heads, None, 'head')}")
    parts.append(length_words(item) + (", no chat template" if not item.prompt.template else ""))
    if item.source:
        parts.append(item.source)
    parts.append(f"{'edge-corrected z′' if view.corrected else 'plain z'} ≥ {view.threshold:g} is a sink")
    parts.append(f"median and MAD over {'tokens outside the template' if chosen.exclude_structural else 'all tokens'}")
    if item.seconds is not None:
        extra = f", {item.peak_extra_bytes / 1e6:,.0f} MB above what the model held" if item.peak_extra_bytes is not None else ""
        parts.append(f"read in {item.seconds:.2f} s{extra}")
    parts.append(stamps.shown(run.created))
    if run.status != "done":
        parts.append(run.status)
    return " · ".join(parts)


def length_words(item: SinkItem) -> str:
    """279 tokens · 112 tokens of prompt and 64 of its answer"""
    count, start = len(item.prompt.ids), item.answer_start
    return f"{count:,} tokens" if start is None else f"{start:,} tokens of prompt and {count - start:,} of its answer"


def _some(chosen: tuple[int, ...] | None, count: int | None, what: str) -> str:
    """all 30 layers · layers 0, 3, 7 · layer 4"""
    if chosen is None:
        return f"all {f'{count} ' if count else ''}{what}s"
    few = ", ".join(map(str, chosen[:8])) + (f" and {len(chosen) - 8} more" if len(chosen) > 8 else "")
    return f"{what}{'' if len(chosen) == 1 else 's'} {few}"
