"""Two runs beside each other: what was asked for differently, and what came out differently."""

from __future__ import annotations

from html import escape
from typing import Sequence

from engine.trace import ModelFacts, Run
from ui.card import sampling_words

FIGURES = (  # key, name, form
    ("plain_tokens_per_second", "verifier-only, tok/s", "{:.1f}"), ("speculative_tokens_per_second", "speculative, tok/s", "{:.1f}"),
    ("speedup", "speedup", "{:.2f}×"), ("acceptance_rate", "acceptance", "{:.1%}"), ("alpha", "per-token α", "{:.1%}"),
    ("tokens_per_pass", "tokens per verifier pass", "{:.2f}"), ("cost_ratio", "draft token cost c", "{:.3f}"),
    ("pass_cost", "pass cost v", "{:.2f}"), ("ceiling", "ceiling, this run", "{:.2f}×"),
    ("break_even", "break-even acceptance", "{:.1%}"), ("orchestration_share", "outside the models", "{:.1%}"),
    ("plain_joules_per_token", "verifier-only, J/token", "{:.3g}"), ("speculative_joules_per_token", "speculative, J/token", "{:.3g}"))


def difference_html(runs: Sequence[Run], figures: Sequence[dict]) -> str:
    """A table of two runs: the settings that differ, then every figure with its change."""
    rows = [f"<tr><th scope='row'>{escape(name)}</th><td>{escape(a)}</td><td>{escape(b)}</td><td></td></tr>"
            for name, a, b in settings_that_differ(*runs)]
    head = "" if rows else "<tr><td colspan='4' class='quiet'>Both were asked for the same.</td></tr>"
    timing = ["disturbed" if f.get("disturbed") else "not disturbed" for f in figures]
    numbers = []
    if "disturbed" in timing:
        numbers.append(f"<tr><th scope='row'>timing</th><td>{timing[0]}</td><td>{timing[1]}</td><td></td></tr>")
    for key, name, form in FIGURES:
        a, b = (f.get(key) for f in figures)
        shown = ["n/a" if v is None else form.format(v).replace("%", " %") for v in (a, b)]
        change = _change(a, b)
        numbers.append(f"<tr><th scope='row'>{escape(name)}</th><td>{shown[0]}</td><td>{shown[1]}</td><td>{change}</td></tr>")
    return ("<div class='sl'><table class='difference'><thead><tr><th></th><th scope='col'>A</th><th scope='col'>B</th>"
            f"<th scope='col'>B against A</th></tr></thead><tbody>{head}{''.join(rows)}</tbody>"
            f"<tbody>{''.join(numbers)}</tbody></table></div>")


def _change(a: float | None, b: float | None) -> str:
    if not a or b is None:
        return ""
    percent = round((b / a - 1) * 100)
    return f"+{percent} %" if percent > 0 else f"−{-percent} %" if percent < 0 else "same"


def settings_that_differ(a: Run, b: Run) -> list[tuple[str, str, str]]:
    """(name, of a, of b) of everything that was asked for or used differently."""
    return [(name, x, y) for (name, x), (_, y) in zip(_settings(a), _settings(b)) if x != y]


def heading_html(run: Run, letter: str) -> str:
    name = run.name or " ".join(run.prompt.text.split())[:80]
    return f"<p class='sl oneline'><b>{letter}</b> · {escape(name)}</p>"


def _settings(run: Run) -> list[tuple[str, str]]:
    s, machine = run.settings, run.machine
    return [("prompt", _short(run.prompt.text)), ("system text", _short(run.prompt.system or "none")),
            ("chat template", "yes" if run.prompt.template else "no"), ("verifier", _model(run.models.get("verifier"))),
            ("draft", "prompt lookup" if s.drafter == "lookup" else _model(run.models.get("draft"))), ("γ", str(s.gamma)),
            ("stop at entropy", "off" if s.entropy_stop is None else f"{s.entropy_stop:g}"), ("sampling", sampling_words(s.sampling)),
            ("most tokens", str(s.max_tokens)), ("repeats", str(s.repeats)), ("chip", machine.chip), ("system", machine.system),
            ("packages", ", ".join(f"{k} {v}" for k, v in sorted(machine.packages.items()))), ("status", run.status)]


def _model(facts: ModelFacts | None) -> str:
    return "none" if facts is None else f"{facts.title} @{(facts.revision or '')[:8]}, {facts.dtype} on {facts.device}"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 120 else line[:119] + "…"
