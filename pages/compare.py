"""Compare: verifier-only against speculative decoding, live, then as one card."""

from engine.models import registry
from ui import again, controls, flow, jobs, live, result, session

session.setup()
session.heading("compare")
desk = jobs.Desk("compare")


def asking() -> None:
    """Controls, Run and Stop. Moving a widget redraws this part alone; only Run starts anything."""
    with flow.folding():
        asked = controls.draw(registry.listing())
    flow.run_row(desk, asked, asked.prompt, controls.trouble, "Both sides answer the prompt, one after the other.",
                 lambda: changed(asked))


def changed(asked) -> None:
    shown, _ = desk.shown()
    if shown is not None and shown.kind == "compare":
        made_from = desk.asked_for(shown) or controls.request_of(shown)
        flow.changed(desk, controls.changes(asked, made_from), lambda: controls.fill(made_from),
                     controls.left(made_from, shown))


def show(run) -> None:
    again.offer(desk, run, result.drawn(run)[0]["disturbed"], controls.request_of, lambda asked: asked.prompt, controls.trouble)
    result.show(run)


flow.page(desk, asking, live.live_html, show,
          "Press Run: both sides answer the same prompt, one after the other, and the fate of every draft token is shown here.",
          lambda run: controls.fill(controls.request_of(run)))
session.warm_up()
