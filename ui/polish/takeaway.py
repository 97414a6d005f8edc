"""A strategy run as files."""

from __future__ import annotations

from typing import Iterable

from engine.analysis.uag import Figures, Row, figures
from engine.trace import UagRun, to_json
from engine.trace.uag import CAUSES
from ui import sheet
from ui.document import CHART_WIDTH, PAGE_WIDTH, chart_svg, document
from ui.picture import captioned
from ui.polish import picture, stepper
from ui.polish.card import CSS, caption, card_html
from ui.polish.charts import FIGURES
from ui.takeaway import NoFigure, Takeaway

TITLES = {"card": "Card", "acceptance": "Acceptance by strategy and k", "speed": "Speed against verifier-only", "causes": "Why candidates were refused"}
HEAD = ("strategy", "k", "prompts", "rounds", "accepted", "proposed", "acceptance", "acceptance_low", "acceptance_high", "draft_tokens_survived",
        "draft_tokens", "tokens_per_pass", "tokens_per_second", "speedup", "translate_seconds", "translate_share", *(c.replace(" ", "_") for c in CAUSES),
        "ceiling", "joules_per_token", "disturbed", "caption")
ROUNDS = ("prompt", "category", "strategy", "k", "round", "draft_ids", "draft_text", "candidates", "candidate_text", "accepted", "closing", "emitted", "cause",
          "gap", "note")


def takeaway(run: UagRun, f: Figures | None = None) -> Takeaway:
    """Everything that can be taken away."""
    f = figures(run) if f is None else f

    def svg(name: str, theme: str) -> str:
        if name == "card":
            return picture.card_svg(run, f, theme)
        chart = FIGURES[name](run, f, theme) if name in FIGURES else None
        if chart is None:
            raise NoFigure(f"This run has no figure “{name}”.")
        return captioned(chart_svg(chart, CHART_WIDTH), caption(run), theme)

    return Takeaway(run.id, "polish", caption(run), TITLES, svg, html=lambda: html(run, f), json=lambda: to_json(run, figures=f, caption=caption(run)),
                    tables={"strategies": lambda: strategies_csv(run, f), "rounds": lambda: rounds_csv(run)}
                    | ({"kinds": lambda: kinds_csv(run, f)} if f.by_category else {}))


def html(run: UagRun, f: Figures) -> str:
    """One document: card, charts, and every round of the first prompt."""
    charts = {name: chart_svg(chart, PAGE_WIDTH) for name, make in FIGURES.items() if (chart := make(run, f, "light")) is not None}
    first = next((i for i in run.items if i.results), None)
    rounds = "".join(f'<details class="sl"><summary>{result.strategy}, k = {result.k}: {stepper.round_count(result):,} rounds</summary>'
                     + "".join(stepper.round_html(run, result, n) for n in range(stepper.round_count(result))) + "</details>"
                     for result in (first.results if first else ()))
    title = run.name or (" ".join(run.items[0].prompt.text[:400].split())[:80] if run.items else "") or run.id
    return document(title, card_html(run, f, prompt=True), charts, CSS + stepper.CSS).replace("</body>", f"{rounds}</body>")


def strategies_csv(run: UagRun, f: Figures) -> str:
    """One row a strategy and k; UTF-8, RFC 4180, an empty cell where a figure is undefined."""
    return sheet.text(HEAD, _figures(f.rows, caption(run)))


def kinds_csv(run: UagRun, f: Figures) -> str:
    """The same for each kind of prompt, which stands in the first column."""
    rows = [(kind, *row) for kind, of in f.by_category.items() for row in _figures(of, "")]
    return sheet.text(("category", *HEAD), [(*row[:-1], "" if n else caption(run)) for n, row in enumerate(rows)])


def _figures(rows: Iterable[Row], note: str) -> list[tuple]:
    """`rows` in the columns of HEAD; `note` ends the first."""
    made = []
    for r in rows:
        low, high = r.acceptance.interval or (None, None)
        made.append((r.strategy, r.k, r.prompts, r.rounds, r.acceptance.above, r.acceptance.below, r.acceptance.value, low, high, r.draft_acceptance.above,
                     r.draft_acceptance.below, r.tokens_per_pass.value, r.tokens_per_second.value, r.speedup.value, r.translate_seconds,
                     r.translate_share.value, *(r.causes[c] for c in CAUSES), r.ceiling.value, r.joules_per_token.value, r.disturbed, note))
        note = ""
    return made


def rounds_csv(run: UagRun) -> str:
    """One row a round of every answer."""
    rows = []
    for item in run.items:
        for result in item.results:
            for n, r in enumerate(result.answer.rounds):
                rows.append((item.label, item.category, result.strategy, result.k, n + 1, " ".join(map(str, r.draft_ids)), _text(r.draft_ids, run.draft_tokens),
                             " ".join(map(str, r.proposed)), _text(r.proposed, run.tokens), r.accepted, r.closing, " ".join(map(str, r.emitted)), r.cause,
                             r.gap, r.note))
    return sheet.text(ROUNDS, rows)


def _text(ids, tokens: dict[int, str]) -> str:
    return b"".join(bytes.fromhex(tokens.get(i, "")) for i in ids).decode("utf-8", "ignore")
