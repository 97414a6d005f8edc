"""The card of a strategy run: it must explain itself when all that is left of it is a screenshot."""

from __future__ import annotations

from html import escape
from typing import Mapping

from engine import stamps
from engine.analysis.metrics import NO_ENERGY
from engine.analysis.uag import Figures, Ratio, Row
from engine.models.cross_pairs import DEMONSTRATION
from engine.trace import UagRun
from engine.trace.uag import BOUNDARY, CAUSES, DIACRITIC, DISAGREEMENT, TIE
from ui.card import disturbed_mark, joules, machine_words, model_words, sampling_words, share, wanted

MEANING = {BOUNDARY: "another cut of the same text would have been accepted", DIACRITIC: "the same, at a letter with a Polish diacritic",
           TIE: "the verifier's two best tokens were less than 0.05 apart", DISAGREEMENT: "the verifier wanted another text"}
SHORT = {BOUNDARY: "boundary", DIACRITIC: "diacritic", TIE: "near tie", DISAGREEMENT: "disagreement"}
LETTER = {BOUNDARY: "cb", DIACRITIC: "cd", TIE: "ct", DISAGREEMENT: "cx"}

CSS = """
.sl .wide{overflow-x:auto} .sl table.uag{display:table;border-collapse:collapse;font-size:13px;width:100%;margin:0;
  font-variant-numeric:tabular-nums}
.sl table.uag :is(th,td){padding:6px 14px 6px 0;text-align:left;vertical-align:top;border:0;border-bottom:1px solid var(--line);font-weight:400}
.sl table.uag th{color:var(--quiet);white-space:nowrap} .sl table.uag th[scope=row]{color:var(--ink);font-weight:600}
.sl table.uag td b{font-weight:600;font-size:15px} .sl table.uag small{display:block;color:var(--quiet);font-size:12px;white-space:nowrap}
.sl table.genres :is(th,td){padding:3px 14px 3px 0} .sl table.genres td small{display:inline;margin-left:6px}
.sl table.uag small:is(.wrap,:has(.mark)){white-space:normal;min-width:15em} .sl table.uag small.wrap{margin-top:3px}
.sl .why{display:flex;height:10px;width:100%;min-width:90px;gap:1px;border-radius:3px;overflow:hidden;margin-top:5px;background:var(--area)}
.sl .why i{display:block}
.sl .cb{background:var(--accent)}
.sl .cd{background:repeating-linear-gradient(135deg,var(--accent) 0 3px,var(--closing) 3px 6px)}
.sl .ct{background:var(--neutral)} .sl .cx{background:var(--rejected)}
.sl .because{display:flex;flex-wrap:wrap;gap:4px 20px;font-size:13px;color:var(--quiet)}
.sl .because i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.sl .said p{margin:0 0 3px}
"""


def card_html(run: UagRun, f: Figures, prompt: bool = False) -> str:
    """Sentences, the table strategy × k, causes, caption; needs `ui.theme.css()` and `CSS` on the page."""
    mark = ("" if run.status == "done" else f'<span class="mark">{escape(run.status)}</span>') + disturbed_mark(f.disturbed)
    first, *rest = f.sentences or ("No strategy ran.",)
    parts = [f'<p class="headline">{escape(first)}{mark}</p>']
    if rest:
        parts.append('<div class="said">' + "".join(f"<p>{escape(s)}</p>" for s in rest) + "</div>")
    if prompt:
        parts.append('<p class="prompt">' + "&#10;".join(escape(i.prompt.text).replace("\n", "&#10;") for i in run.items[:20]) + "</p>")
    parts += [table_html(run, f), *([causes_html(f)] if f.rows else []), genres_html(f)]
    notes = notes_of(run)
    if notes:
        parts.append('<ul class="notes">' + "".join(f"<li>{escape(n)}</li>" for n in notes[:30]) + "</ul>")
    parts.append(f'<p class="caption">{escape(caption(run))}</p>')
    return f'<article class="sl card" aria-label="Translation strategies">{"".join(parts)}</article>'


def notes_of(run: UagRun) -> list[str]:
    """What models, run and answers noted, each once; of the bundled Polish models, what they are."""
    notes = list(dict.fromkeys([*(n for m in run.models.values() for n in m.notes), *run.notes,
                                *(n for i in run.items for r in i.results for n in r.answer.notes)]))
    demonstration = any(m.name.startswith("bundled:polish") for m in run.models.values())
    return notes + [DEMONSTRATION] * demonstration


def table_html(run: UagRun, f: Figures) -> str:
    """One row a strategy, one column a k: acceptance with its counts, tokens per pass, speed against verifier-only, causes."""
    ks = [k for k in run.ks if any(r.k == k for r in f.rows)]
    strategies = list(dict.fromkeys(r.strategy for r in f.rows))
    if not ks:
        return '<p class="quiet">No strategy finished an answer.</p>'
    head = "".join(f'<th scope="col">k = {k}</th>' for k in ks)
    body = "".join(f'<tr><th scope="row">{escape(s)}</th>' + "".join(_cell(f.row(s, k)) for k in ks) + "</tr>" for s in strategies)
    plain, why = number(f.plain, ".1f"), no_energy(run, f)
    plain += f" tok/s, {joules(f.plain_joules.value)} per token" if f.plain_joules.value is not None else " tok/s"
    return (f'<div class="wide" tabindex="0"><table class="uag"><thead><tr><th scope="col">acceptance of candidates</th>{head}</tr></thead>'
            f'<tbody>{body}</tbody></table></div><p class="quiet" style="font-size:13px">Verifier-only: {plain}. Intervals are 95 %: '
            f"{escape(_how(f))}.{' ' + escape(why) if why else ''}</p>")


def no_energy(run: UagRun, f: Figures) -> str:
    """Why there are no joules in the table; empty where there are."""
    known = any(q.value is not None for q in (f.plain_joules, *(r.joules_per_token for r in f.rows)))
    return "" if known else run.machine.energy or NO_ENERGY


def genres_html(f: Figures) -> str:
    """Acceptance of candidates by kind of prompt, where there are several: one row a strategy and k."""
    if not f.by_category:
        return ""
    head = "".join(f'<th scope="col">{escape(name or "no category")}</th>' for name in f.by_category)
    body = ""
    for row in f.rows:
        found = (next((r for r in rows if (r.strategy, r.k) == (row.strategy, row.k)), None) for rows in f.by_category.values())
        cells = "".join("<td>–</td>" if r is None else f"<td>{percent(r.acceptance)}<small>of {r.acceptance.below:,}</small></td>" for r in found)
        body += f'<tr><th scope="row">{escape(row.strategy)}, k = {row.k}</th>{cells}</tr>'
    return (f'<div class="wide" tabindex="0"><table class="uag genres"><thead><tr><th scope="col">acceptance by kind of prompt</th>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>")


def _how(f: Figures) -> str:
    return next((r.acceptance.how for r in f.rows if r.acceptance.how), "not defined for so few")


def _cell(row: Row | None) -> str:
    if row is None:
        return "<td>–</td>"
    lines = [f"<b>{percent(row.acceptance)}</b>",
             f"<small>{row.acceptance.above:,} of {row.acceptance.below:,} candidates{between(row.acceptance)}</small>",
             f"<small>{percent(row.draft_acceptance)} of {row.draft_acceptance.below:,} draft tokens</small>",
             f"<small>{number(row.tokens_per_pass, '.2f')} tokens/pass · {number(row.tokens_per_second, '.1f')} tok/s · "
             f"<strong>{number(row.speedup, '.2f', '×')}</strong>{disturbed_mark(row.disturbed)}</small>",
             *(f"<small>{line}</small>" for line in beside(row))]
    return f"<td>{''.join(lines)}{why_html(row)}</td>"


def beside(row: Row) -> list[str]:
    """Lines below a cell's speed: the most it could be and energy, where they are known; the translation's time."""
    known = [f"ceiling {number(row.ceiling, '.2f', '×')}"] if row.ceiling.value is not None else []
    known += [f"{joules(row.joules_per_token.value)} per token"] if row.joules_per_token.value is not None else []
    return [" · ".join(known) or "no ceiling", f"translation {row.translate_seconds * 1000:.0f} ms, {percent(row.translate_share, 1)}"]


def why_html(row: Row) -> str:
    """The causes of this cell's refusals as one bar, and in words."""
    if not row.refused:
        return ""
    return f'{bar_html(row.causes)}<small class="wrap">{row.refused:,} refused: {counts_words(row.causes)}</small>'


def bar_html(causes: Mapping[str, int]) -> str:
    """Counts of causes as one bar."""
    total, said = sum(causes.values()), ", ".join(f"{cause} {causes.get(cause, 0)}" for cause in CAUSES)
    parts = "".join(f'<i class="{LETTER[c]}" style="width:{100 * causes[c] / total:.2f}%"></i>' for c in CAUSES if causes.get(c))
    return f'<div class="why" role="img" title="{escape(said)}" aria-label="{total} refusals: {escape(said)}">{parts}</div>'


def counts_words(causes: Mapping[str, int]) -> str:
    return ", ".join(f"{causes[cause]:,} {SHORT[cause]}" for cause in CAUSES if causes.get(cause))


def causes_html(f: Figures) -> str:
    total = {c: sum(r.causes[c] for r in f.rows) for c in CAUSES}
    items = "".join(f'<span title="{escape(MEANING[c])}"><i class="{LETTER[c]}"></i>{escape(c)}: {MEANING[c]} ({total[c]:,})</span>' for c in CAUSES)
    return f'<div class="because">{items}</div>'


def percent(ratio: Ratio, places: int = 0) -> str:
    if ratio.value is None:
        return "n/a"
    return share(ratio.value) if not places else f"{100 * ratio.value:.{places}f} %"


def number(ratio: Ratio, form: str, unit: str = "") -> str:
    return "n/a" if ratio.value is None else format(ratio.value, form) + unit


def between(ratio: Ratio) -> str:
    return f", {share(ratio.interval[0])}–{share(ratio.interval[1])}" if ratio.interval else ""


def caption(run: UagRun) -> str:
    """One line that says what was run, with what and when; the same in every export."""
    parts = [f"{role} {model_words(facts)}" for role, facts in run.models.items()]
    engines = dict.fromkeys(f"{f.backend} {f.backend_version}" for f in run.models.values())
    if "transformers" in run.machine.packages:
        engines[f"transformers {run.machine.packages['transformers']}"] = None
    parts += list(engines)
    devices = dict.fromkeys(wanted(f.device, f.asked_device) for f in run.models.values())
    parts.append(f"{machine_words(run)}, {', '.join(devices)}" if devices else machine_words(run))
    parts.append(f"strategies {', '.join(run.strategies)}; k {', '.join(map(str, run.ks))}; p {run.prefix}")
    parts.append(sampling_words(run.settings.sampling))
    ran = [i for i in run.items if i.refused is None]
    raw = any(not i.prompt.template for i in ran)
    parts.append(f"{len(ran)} prompt{'' if len(ran) == 1 else 's'}, at most {run.settings.max_tokens} tokens each" + (", no chat template" if raw else ""))
    parts.append(f"{run.settings.repeats} run{'' if run.settings.repeats == 1 else 's'} each, warm, load and warm-up not timed")
    parts.append(stamps.shown(run.created))
    if run.status != "done":
        parts.append(run.status)
    return " · ".join(parts)
