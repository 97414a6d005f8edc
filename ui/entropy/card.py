"""The card of a run's entropies: it must explain itself when all that is left of it is a screenshot."""

from __future__ import annotations

from html import escape
from typing import Sequence

from engine import stamps
from engine.analysis.entropy import CONTINUATION, FIRST, Trail, counted, refused, sentence, shown
from engine.trace import AnyRun
from ui.card import lines, machine_words, model_words, sampling_words, share, wanted
from ui.entropy import ribbon

CSS = ribbon.CSS
REFUSED_SHOWN = 12


def card_html(run: AnyRun, chosen: Sequence[Trail], trail: Trail, figures: dict, *, start: int = 0, count: int | None = ribbon.WINDOW,
              prompt: bool = False) -> str:
    """One side of a run; needs `ui.theme.css()` and `CSS` on the page. `chosen`: its answers, `figures` theirs
    (`engine.analysis.entropy.figures`); `trail`: the answer whose tokens are drawn, from `start`, `count` of them."""
    mark = "" if run.status == "done" else f'<span class="mark">{escape(run.status)}</span>'
    parts = [f'<p class="headline">{escape(sentence(run, figures))}{mark}</p>']
    if prompt:
        parts.append(f'<p class="prompt">{lines(trail.prompt.text)}</p>')
    if len(chosen) > 1 or trail.label:
        parts.append(f'<p class="round-line">{escape(which(trail))}</p>')
    length = len(trail.ids)
    drawn = length if count is None else min(length, start + count) - start
    if drawn < length:
        parts.append(f'<p class="round-line">Tokens {start + 1:,} to {start + drawn:,} of {length:,}; figures and files cover all.</p>')
    parts += [ribbon.ribbon_html(run, trail, start, count), ribbon.legend_html(trail), figures_html(figures)]
    said = notes(run, chosen)
    if said:
        parts.append('<ul class="notes">' + "".join(f"<li>{escape(n)}</li>" for n in said) + "</ul>")
    parts.append(f'<p class="caption">{escape(caption(run, chosen, trail))}</p>')
    return f'<article class="sl card" aria-label="Entropy">{"".join(parts)}</article>'


def which(trail: Trail) -> str:
    """The answer that is drawn, and its own mean."""
    known = [b for b in trail.bits if b is not None]
    label = f"prompt {trail.label}" if trail.label.isdigit() else trail.label
    name = (label or "the answer") + (f" ({trail.category})" if trail.category else "")
    mean = f"mean {shown(sum(known) / len(known), 1)} bits over {counted(len(known))}" if known else "no entropy recorded"
    return f"Below: {name}, {mean}."


def key_figures(f: dict) -> list[tuple[str, str | None, str, str]]:
    """The card's figures as plain text: (name, figure or None, denominator or remark, what it means)."""
    w, d = f["words"], f["draft"]

    def bits(value: float | None) -> str | None:
        return None if value is None else f"{shown(value)} bits"

    def between(span, else_: str) -> str:
        return f"95 %: {shown(span[0])} to {shown(span[1])}" if span else else_

    rows = [
        ("Model entropy", bits(f["entropy_bits"]), between(f["entropy_interval"], "") + (", " if f["entropy_interval"] else "")
         + f"{counted(f['tokens'])}, highest {shown(f['entropy_bits_max'])}",
         "Of the raw softmax, before temperature and filters: −Σ p log₂ p. 0 is certain, 1 bit two equal choices, 4 bits sixteen."),
        ("Sampling entropy", bits(f["sampling_entropy_bits"]),
         counted(f["sampling_tokens"]) if f["sampling_tokens"] else "not recorded in this run",
         "Of the distribution the token was drawn from: after repetition penalty, temperature, top-k, top-p and min-p. Greedy: 0."),
        ("Normalised", None if f["normalised"] is None else f"{f['normalised']:.3f}", "of the usable vocabulary",
         "Model entropy / log₂(usable vocabulary): 1 is every token equally likely. The same rule for every model."),
        (f"Above {f['unsure_bits']:g} bits", f"{f['unsure']:,}",
         f"of {counted(f['tokens'])}" + (f", {share(f['unsure'] / f['tokens'])}" if f["tokens"] else ""),
         f"Tokens at which the model was as unsure as between {2 ** f['unsure_bits']:.0f} equal choices or more."),
        ("First piece of a word", bits(w[FIRST]["bits"]), counted(w[FIRST]["tokens"]),
         "Mean model entropy of tokens with which a word begins: here the model commits to a word."),
        ("Continuation", bits(w[CONTINUATION]["bits"]), counted(w[CONTINUATION]["tokens"]),
         "Mean model entropy of tokens that go on inside a word."),
        ("First − continuation", bits(w["difference"]), between(w["interval"], "too few for an interval"),
         "Difference of the two means; Welch's 95 % interval takes tokens as independent of each other, which those of one text "
         "are not quite."),
    ]
    if d["judged"]:
        rows += [
            ("Draft entropy, accepted", bits(d["accepted_bits"]), counted(d["accepted"]),
             "Mean entropy of the draft's own distribution where its token was accepted."),
            ("Draft entropy, rejected", bits(d["rejected_bits"]), counted(d["rejected"]),
             "The same where its token was judged and refused. Discarded tokens are left out."),
        ]
    return rows


def figures_html(f: dict) -> str:
    cells = []
    for name, figure, remark, meaning in key_figures(f):
        value = escape(figure) if figure is not None else f'<abbr title="{escape(remark)}">n/a</abbr>'
        cells.append(f'<div><dt><abbr title="{escape(meaning)}">{escape(name)}</abbr></dt>'
                     f"<dd>{value}<small>{escape(remark)}</small></dd></div>")
    return f'<dl class="figures">{"".join(cells)}</dl>'


def notes(run: AnyRun, chosen: Sequence[Trail]) -> list[str]:
    """What a reader must know: of the run, the answers and the models, and which prompts were refused, and why."""
    found = [*run.notes, *(n for t in chosen for n in t.answer.notes), *(f"{m.title}: {n}" for m in run.models.values() for n in m.notes)]
    gone = refused(run)
    found += [f"Refused{', ' + name if name else ''}: {why}" for name, why in gone[:REFUSED_SHOWN]]
    if len(gone) > REFUSED_SHOWN:
        found.append(f"and {len(gone) - REFUSED_SHOWN} more prompts were refused; the JSON file names them all.")
    return list(dict.fromkeys(found))


def caption(run: AnyRun, chosen: Sequence[Trail], trail: Trail) -> str:
    """One line that says what was run, with what and when, and what the colours are; the same in every export."""
    parts = [f"{role} {model_words(facts)}" for role, facts in run.models.items()]
    engines = dict.fromkeys(f"{f.backend} {f.backend_version}" for f in run.models.values())
    if "transformers" in run.machine.packages:
        engines[f"transformers {run.machine.packages['transformers']}"] = None
    parts += list(engines)
    devices = dict.fromkeys(wanted(f.device, f.asked_device) for f in run.models.values())
    parts.append(f"{machine_words(run)}, {', '.join(devices)}" if devices else machine_words(run))
    parts.append(trail.side[0].lower() + trail.side[1:])
    parts.append(sampling_words(run.settings.sampling))
    tokens = sum(len(t.ids) for t in chosen)
    many = f"{len(chosen)} answers, {tokens:,} tokens" if len(chosen) > 1 else counted(tokens)
    parts.append(f"{many} of at most {run.settings.max_tokens:,}{' each' if len(chosen) > 1 else ''}")
    parts.append(f"{counted(len(trail.prompt.ids), 'prompt token')}" + (", no chat template" if not trail.prompt.template else ""))
    parts.append("model entropy of the raw softmax in bits; colours cividis 0–8 bits")
    parts.append(stamps.shown(run.created))
    if run.status != "done":
        parts.append(run.status)
    return " · ".join(parts)
