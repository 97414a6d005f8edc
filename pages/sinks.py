"""Sinks: where a prompt's attention drains, token by token."""

from engine.models import registry
from ui import flow, jobs, live, promptset, session
from ui.sinks import controls, result

session.setup()
session.heading("sinks")
desk = jobs.Desk("sinks")


def asking() -> None:
    """Controls, the forecast, Run and Stop. Moving a widget redraws this part alone; only Run starts anything."""
    with flow.folding():
        asked = controls.draw(registry.listing())
    flow.run_row(desk, asked, promptset.title(asked.prompts), controls.trouble, "The model reads each prompt once, and what attention it paid is added up.",
                 lambda: beside(asked))


def beside(asked) -> None:
    shown, _ = desk.shown()
    shown = shown if shown is not None and shown.kind == "sinks" else None
    if told := controls.forecast_html(asked, controls.last_reading(shown)):
        session.draw(told, width="content")
    if shown is not None:
        made_from = desk.asked_for(shown) or controls.request_of(shown)
        flow.changed(desk, controls.changes(asked, made_from), lambda: controls.fill(made_from),
                     controls.left(made_from, shown))


flow.page(desk, asking, live.progress_html, result.show,
          "Press Run: the model reads the prompt once. Then every token shows how much attention it received, which of them drain more than their "
          "like, and whether the chat template explains it.",
          lambda run: controls.fill(controls.request_of(run)))
session.warm_up()
