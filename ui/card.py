"""The bordered card around a result: it must explain itself when all that is left of it is a screenshot."""

from __future__ import annotations

from html import escape
from typing import Sequence

from engine import stamps
from engine.trace import PLAIN, AnyRun, ModelFacts, Run
from ui.ribbon import legend_html, ribbon_html, tokens_of

SIDES = {"plain": "Verifier only", "speculative": "Speculative"}


def card_html(
    run: Run,
    metrics: dict,
    certificate: str | Sequence[str] | None = None,
    *,
    dropped: bool = True,
    ribbons: bool = True,
    prompt: bool = False,
) -> str:
    """The whole result as HTML; needs `ui.theme.css()` on the page. `metrics` is `engine.analysis.metrics.metrics(run)`.

    `dropped` shows rejected and discarded tokens in place; `prompt` puts the prompt's text on top; `certificate` is what
    the pair's last certificate said, one sentence or a few.
    """
    mark = ("" if run.status == "done" else f'<span class="mark">{escape(run.status)}</span>') + disturbed_mark(metrics.get("disturbed"))
    parts = [f'<p class="headline">{escape(metrics.get("sentence") or "")}{mark}</p>']
    if prompt:
        parts.append(f'<p class="prompt">{lines(run.prompt.text)}</p>')
    parts.append(sides_html(run, metrics, dropped=dropped, ribbons=ribbons))
    parts.append(figures_html(metrics))
    parts.append(bottom_html(metrics))
    notes = all_notes(run)
    if notes:
        parts.append('<ul class="notes">' + "".join(f"<li>{escape(n)}</li>" for n in notes) + "</ul>")
    parts.append(f'<p class="caption">{escape(caption(run))}{_certificate(certificate)}</p>')
    return f'<article class="sl card" aria-label="Result">{"".join(parts)}</article>'


def disturbed_mark(why: str | None) -> str:
    """The word beside a figure whose timing was disturbed, with the reason on hover; nothing where it was not."""
    return f' <span class="mark" title="{escape(why)}">disturbed</span>' if why else ""


def lines(text: str) -> str:
    """Text as HTML that keeps its line breaks wherever it is put."""
    return escape(text).replace("\n", "&#10;")


def sides_html(run: Run, metrics: dict, *, dropped: bool = True, ribbons: bool = True) -> str:
    """Both sides: heading, decode and prefill speed with the range over repeats, ribbon; below them the legend of
    states."""
    where, words = first_split(run, metrics)
    blocks, seen = [], []
    for side, title in SIDES.items():
        answer = getattr(run, side)
        if answer is None:
            continue
        how = f"γ = {run.settings.gamma}" if side == "speculative" else ""
        if how and run.settings.drafter == "lookup":
            how += ", prompt lookup"
        ribbon = ""
        if ribbons:
            tokens = tokens_of(run, side, dropped=dropped)
            seen += [t.state for t in tokens]
            ribbon = ribbon_html(tokens, label=f"{title}: the tokens", split=where, split_text=words, frame=False)
        blocks.append(
            f'<section class="side {"fast" if side == "speculative" else ""}"><h3><b>{escape(title)}</b> {escape(how)}</h3>'
            f"{speed_html(metrics, side, len(answer.ids), answer.finish)}{ribbon}</section>"
        )
    legend = legend_html(seen) if set(seen) - {PLAIN} else ""
    return f'<div class="sides">{"".join(blocks)}</div>{legend}'


def first_split(run: Run, metrics: dict) -> tuple[int | None, str]:
    """The emitted index at which the two answers part, and what to call it; sampled answers part by chance."""
    found = metrics.get("first_divergence")
    if found:
        return found["index"], "first difference"
    if run.plain is None or run.speculative is None or not run.settings.sampling.greedy:
        if run.plain and run.speculative:
            pairs = zip(run.plain.ids, run.speculative.ids)
            return next((i for i, (a, b) in enumerate(pairs) if a != b), None), "first difference (by chance)"
    return None, ""


def speed_html(metrics: dict, side: str, count: int, finish: str) -> str:
    """Decode speed large, its range, prefill speed and length small."""
    rate, span = metrics.get(f"{side}_tokens_per_second"), metrics.get(f"{side}_tokens_per_second_range")
    prefill = metrics.get(f"{side}_prefill_tokens_per_second")
    range_ = f"<span>{span_of(span)}</span>" if span and span[0] != span[1] else ""
    ends = {"eos": "end token", "length": "length limit", "stopped": "stopped", "context": "context full"}
    return (
        f'<div class="speed"><span><b>{value(metrics, f"{side}_tokens_per_second", rate, "{:.1f}")}</b> tok/s</span>{range_}'
        f"<span>prefill {value(metrics, f'{side}_prefill_tokens_per_second', prefill, '{:.0f}')} tok/s</span>"
        f"<span>{count} token{'' if count == 1 else 's'}, {escape(ends.get(finish, finish))}</span></div>"
    )


def span_of(span: Sequence[float], form: str = "{:.1f}", unit: str = "") -> str:
    """A range over repeats: (30.8–31.5)."""
    return f"({form.format(span[0])}–{form.format(span[1])}{unit})"


def value(metrics: dict, key: str, number: float | None, form: str) -> str:
    """A figure as HTML, or n/a with the reason on hover."""
    if number is None:
        return f'<abbr title="{escape(reason(metrics, key))}">n/a</abbr>'
    return form.format(number)


def reason(metrics: dict, key: str) -> str:
    """Why a figure is undefined."""
    return (metrics.get("reasons") or {}).get(key) or "Not measured in this run."


def share(number: float) -> str:
    """0.613 → 61 %; what would round to none or all is not rounded."""
    if 0 < number < 0.01 or 0.99 < number < 1:
        return f"{number * 100:.1f} %"
    return f"{number * 100:.0f} %"


def joules(number: float) -> str:
    """1.9 J; small amounts keep two digits."""
    return f"{number:.1f} J" if number >= 1 else f"{number:.2g} J"


def key_figures(metrics: dict) -> list[tuple[str, str, str | None, str, str]]:
    """The card's figures as plain text: (key, name, figure or None, denominator or remark, what it means)."""
    m = metrics

    def shown(key, form):
        number = m.get(key)
        return None if number is None else form(number)

    def times(n):
        return f"{n:.2f}×"

    judged = (m.get("proposed") or 0) - (m.get("discarded") or 0)
    span, shaky = m.get("speedup_range"), "disturbed, " if m.get("disturbed") else ""
    flops, own = shown("ceiling_flops", times), shown("ceiling", times)
    even = shown("break_even", share)
    c = shown("cost_ratio", "{:.3f}".format)
    c_flops = shown("cost_ratio_flops", "{:.3f}".format)
    return [
        (
            "acceptance_rate",
            "Acceptance",
            shown("acceptance_rate", share),
            f"{m.get('accepted') or 0} of {m.get('proposed') or 0} proposed",
            "Accepted draft tokens / proposed draft tokens; discarded tokens count as proposed.",
        ),
        (
            "alpha",
            "Per-token α",
            shown("alpha", share),
            f"{m.get('accepted') or 0} of {judged} judged",
            "Chance that a draft token that is judged is accepted (Leviathan et al. 2023).",
        ),
        (
            "tokens_per_pass",
            "Tokens per pass",
            shown("tokens_per_pass", "{:.2f}".format),
            f"{m.get('corrections') or 0} corrections, {m.get('bonuses') or 0} bonuses",
            "Tokens written per verifier pass; verifier-only writes one.",
        ),
        (
            "speedup",
            "Speedup",
            shown("speedup", times),
            shaky + (span_of(span, "{:.2f}", "×") if span[0] != span[1] else "one repeat") if span else shaky.rstrip(", "),
            "Decode tok/s by medians per pass, speculative / verifier-only, repeat by repeat.",
        ),
        (
            "end_to_end_speedup",
            "Speedup with prefill",
            shown("end_to_end_speedup", times),
            "prefill and decode together",
            "Tokens / (prefill + decode) seconds, speculative / verifier-only. Load and warm-up are left out.",
        ),
        (
            "ceiling",
            "Ceiling, this run",
            own,
            f"by FLOPs {flops}" if flops else "",
            "The speedup if speculative decoding spent no time outside the models: (1 + γr) / (γc + v) from this run's own c and v, "
            "over what verifier-only spends inside its model. By FLOPs: the textbook's, v = 1.",
        ),
        (
            "break_even",
            "Break-even acceptance",
            even,
            f"by FLOPs {shown('break_even_flops', share)}" if m.get("break_even_flops") is not None else "",
            "Acceptance below which drafting loses: c + (v − 1)/γ.",
        ),
        (
            "cost_ratio",
            "Draft token cost c",
            c,
            f"by FLOPs {c_flops}" if c_flops else "",
            "One draft token / one verifier token, in time.",
        ),
        (
            "pass_cost",
            "Pass cost v(γ+1)",
            shown("pass_cost", "{:.2f}".format),
            "verifier passes of one token",
            "One verifier pass over γ + 1 tokens / over one token. The textbook takes 1.",
        ),
        (
            "orchestration_share",
            "Outside the models",
            shown("orchestration_share", share),
            "of decode time",
            "Orchestration share: decode time not spent inside a model's forward pass.",
        ),
        (
            "speculative_joules_per_token",
            "Energy per token",
            shown("speculative_joules_per_token", joules),
            f"against {shown('plain_joules_per_token', joules)} verifier-only" if m.get("plain_joules_per_token") is not None
            else "not measured" if m.get("speculative_joules_per_token") is None else "",
            "Joules of decode / tokens: of the whole machine, as zeus counts it, not corrected for what it draws when idle.",
        ),
    ]


def figures_html(metrics: dict) -> str:
    """The key figures, each with its denominator and, on hover, its definition."""
    cells = []
    for key, name, figure, remark, meaning in key_figures(metrics):
        shown = escape(figure) if figure is not None else f'<abbr title="{escape(reason(metrics, key))}">n/a</abbr>'
        cells.append(
            f'<div><dt><abbr title="{escape(meaning)}">{escape(name)}</abbr></dt><dd>{shown}<small>{escape(remark)}</small></dd></div>'
        )
    return f'<dl class="figures">{"".join(cells)}</dl>'


def bottom_html(metrics: dict) -> str:
    """Acceptance by position as small bars with counts, and where decode time went."""
    parts = []
    rows = [r for r in metrics.get("acceptance_by_position") or [] if r["judged"]]
    if rows:
        bars = "".join(
            f'<div><div class="well"><i style="height:{100 * r["accepted"] / r["judged"]:.0f}%"></i></div>'
            f"<b>{share(r['accepted'] / r['judged'])}</b><small>{r['accepted']} of {r['judged']}</small></div>"
            for r in rows[:10]
        )
        parts.append(
            f'<div><h3>Accepted of those judged, by position in the block</h3><div class="bars">{bars}</div></div>'
        )
    spent = time_shares(metrics)
    if spent:
        bar = "".join(f'<i class="{name[0]}" style="width:{100 * part:.2f}%"></i>' for name, _, part in spent)
        keys = "".join(
            f'<span><i class="{name[0]}"></i>{label} {share(part)} · {seconds:.2f} s</span>'
            for (name, seconds, part), label in zip(spent, ("verify", "draft", "other"))
        )
        parts.append(
            f'<div><h3>Where the speculative decode time went</h3><div class="stack">{bar}</div><div class="keys">{keys}</div></div>'
        )
    return f'<div class="pair">{"".join(parts)}</div>' if parts else ""


def time_shares(metrics: dict, side: str = "speculative") -> list[tuple[str, float, float]]:
    """(name, seconds, share of decode) for verify, draft and other; empty if nothing was timed."""
    times = (metrics.get("time") or {}).get(side)
    if not times:
        return []
    total = sum(times[n] for n in ("verify", "draft", "other"))
    return [(n, times[n], times[n] / total) for n in ("verify", "draft", "other")] if total > 0 else []


def all_notes(run: Run) -> list[str]:
    """What a reader must know: notes of the run, of each side and of the models, without repetition."""
    notes = list(run.notes)
    for side in SIDES:
        answer = getattr(run, side)
        notes += answer.notes if answer else ()
    for facts in run.models.values():
        notes += [f"{facts.title}: {n}" for n in facts.notes]
    return list(dict.fromkeys(notes))


def _certificate(certificate) -> str:
    if not certificate:
        return ""
    texts = [certificate] if isinstance(certificate, str) else list(certificate)
    return "<br>Certificate: " + " · ".join(escape(t) for t in texts)


def caption(run: Run) -> str:
    """One line that says what was run, with what and when; the same in every export."""
    s, sampling = run.settings, run.settings.sampling
    parts = [f"{role} {model_words(facts)}" for role, facts in run.models.items()]
    if s.drafter == "lookup":
        parts.append(f"drafter: prompt lookup, n-grams of {s.lookup_shortest} to {s.lookup_ngram}")
    engines = dict.fromkeys(f"{f.backend} {f.backend_version}" for f in run.models.values())
    if "transformers" in run.machine.packages:
        engines[f"transformers {run.machine.packages['transformers']}"] = None
    parts += list(engines)
    devices = dict.fromkeys(wanted(f.device, f.asked_device) for f in run.models.values())
    parts.append(f"{machine_words(run)}, {', '.join(devices)}" if devices else machine_words(run))
    parts.append(f"γ {s.gamma}" + (f", stop at entropy {s.entropy_stop:g}" if s.entropy_stop is not None else ""))
    parts.append(sampling_words(sampling))
    counts = [f"{len(getattr(run, side).ids)}" for side in SIDES if getattr(run, side) is not None]
    parts.append(f"{len(run.prompt.ids)} prompt tokens" + (", no chat template" if not run.prompt.template else ""))
    parts.append(f"{' and '.join(dict.fromkeys(counts)) or 'no'} tokens of at most {s.max_tokens}")
    done = max((len(getattr(run, side).timings) for side in SIDES if getattr(run, side) is not None), default=0)
    parts.append(f"{done} run{'' if done == 1 else 's'} a side, warm, load and warm-up not timed")
    parts.append(stamps.shown(run.created))
    if run.status != "done":
        parts.append(run.status)
    return " · ".join(parts)


def machine_words(run: AnyRun) -> str:
    """Apple M2 Pro, 16 GB, macOS 15.2: the machine a figure comes from."""
    m = run.machine
    return f"{m.chip}, {m.memory_bytes / 2**30:.0f} GB, {m.system}"


def model_words(facts: ModelFacts) -> str:
    """SmolLM2-135M-Instruct @b179c9523d0e (Q4_1 → bfloat16)."""
    at = f" @{facts.revision[:12]}" if facts.revision else ""
    stored = facts.weights if facts.dtype in facts.weights else f"{facts.weights} → {facts.dtype}"
    asked = f", asked {facts.asked_dtype}" if facts.asked_dtype not in ("auto", facts.dtype) else ""
    return f"{facts.title}{at} ({stored}{asked})"


def wanted(used: str, asked: str) -> str:
    """What was used, and what was asked for if that was something else."""
    return used if asked in ("auto", used) else f"{used} (asked {asked})"


def sampling_words(s) -> str:
    """greedy · or: temperature 0.7, top-p 0.9, seed 0. A filter that is off is not named."""
    if s.greedy:
        words = ["greedy (temperature 0)"]
    else:
        words = [f"temperature {s.temperature:g}"]
        words += [f"top-k {s.top_k}"] if s.top_k else []
        words += [f"top-p {s.top_p:g}"] if s.top_p < 1 else []
        words += [f"min-p {s.min_p:g}"] if s.min_p > 0 else []
    words += [f"repetition penalty {s.repetition_penalty:g}"] if s.repetition_penalty != 1 else []
    return ", ".join(words + [f"seed {s.seed}"])
