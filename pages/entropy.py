"""Entropy: how sure a model is of each token, live or of any saved run."""

from engine.models import registry
from ui import flow, jobs, promptset, session
from ui.entropy import controls, live, result

session.setup()
session.heading("entropy")
desk = jobs.Desk("entropy")


def asking() -> None:
    """Controls, Run and Stop, and the saved runs. Moving a widget redraws this part alone; only Run starts anything."""
    with flow.folding():
        asked = controls.draw(registry.listing())
    flow.run_row(desk, asked, promptset.title(asked.prompts), controls.trouble, "The model answers each prompt, one after the other.",
                 lambda: changed(asked))
    result.saved(desk)


def changed(asked) -> None:
    shown, _ = desk.shown()
    if shown is not None and shown.kind == "entropy":
        made_from = desk.asked_for(shown) or controls.request_of(shown)
        flow.changed(desk, controls.changes(asked, made_from), lambda: controls.fill(made_from),
                     controls.left(made_from, shown))


flow.page(desk, asking, live.growing, result.show,
          "Press Run: the model answers, and every token shows how unsure the model was of it, in bits, and what else it could have been. "
          "Or choose a saved run: those of Compare hold entropies too.", lambda run: controls.fill(controls.request_of(run)), kinds=("compare", "uag"))
session.warm_up()
