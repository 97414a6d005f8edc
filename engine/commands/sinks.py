"""`python -m engine sinks`: where attention drains in a prompt."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.commands import add_model_options, add_prompt_options, number, printable, prompts_of
from engine.driver import load, perform
from engine.errors import RequestError
from engine.models.home import folder
from engine.request import SinksRequest
from engine.tokens import own_text
from engine.trace import AnyRun, SinkItem, SinksRun, plain_data

if TYPE_CHECKING:
    from engine.attention.view import SinkView

LISTED = 400  # tokens that the table writes out; --json has them all


def add_parser(subparsers) -> None:
    p = subparsers.add_parser("sinks", help="where attention drains in a prompt", allow_abbrev=False,
                              description="Read a prompt, or a file of prompts, once and say how much attention each token receives, which "
                                          "tokens are sinks and how much drains into them. A model is bundled:NAME, a hub id, a folder or "
                                          "a .gguf file.")
    p.add_argument("--model", metavar="MODEL", help="needed unless --run names it")
    add_prompt_options(p).add_argument("--run", metavar="RUN", dest="stored", help="the finished answer of a run of Compare, Entropy or Polish, read after "
                                       "its prompt as the ids stand: its id among the app's runs, or the path of its JSON file")
    p.add_argument("--side", metavar="SIDE", default=None, help="which answer of --run: plain, speculative, or a strategy and its k such as context-4 (the first)")
    p.add_argument("--threshold", type=number("threshold"), default=None, metavar="T", help="z from which a token is a sink "
                   "(measured: at most 1 %% of the tokens of ordinary text lie above it)")
    p.add_argument("--layers", type=indices, default=None, metavar="LIST", help="such as 0-3,7 (all)")
    p.add_argument("--heads", type=indices, default=None, metavar="LIST", help="such as 0-3,7 (all)")
    p.add_argument("--no-edge-correction", action="store_true", help="judge by z as it is, not by z′ at equal numbers of queries")
    p.add_argument("--include-structural", action="store_true", help="let the template's tokens count in median and MAD")
    p.add_argument("--save", action="store_true", help="keep the run among the app's runs")
    add_model_options(p)


def indices(text: str) -> tuple[int, ...]:
    """An argparse type: "0-3,7" → (0, 1, 2, 3, 7)."""
    found: set[int] = set()
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not (low.isascii() and low.isdigit() and len(low) < 6) or (dash and not (high.isascii() and high.isdigit() and len(high) < 6)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list like 0-3,7")
        first, last = int(low), int(high if dash else low)
        if last < first:
            raise argparse.ArgumentTypeError(f"{part.strip()!r} runs backwards; write {last}-{first}")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def run(args) -> int:
    asked = request(args)

    def begin(signals, progress):
        from engine.models import source

        _check_chosen(args, source.config(asked.model))
        from engine.attention import run as analysis

        return analysis.run(asked, load, signals.asked,
                            lambda stage: progress.say(stage.text + ("" if stage.done is None else f": {stage.done:.0%}")))

    def told(made: SinksRun):
        views = [None if item.refused else _view(item, args) for item in made.items]
        return lambda: report(made, views, alone=args.prompt_set is None and args.ready_set is None and len(asked.prompts) == 1), lambda: describe(made, views)

    return perform(args, asked, begin, told)


def request(args) -> SinksRequest:
    """The request that parsed options amount to; RequestError if the texts are none."""
    if args.stored is not None:
        return request_of_answer(args)
    if args.side is not None:
        raise RequestError("--side says which answer of a stored run is read; name the run with --run.")
    if args.model is None:
        raise RequestError("No model is named; give one with --model.")
    return SinksRequest(prompts_of(args), args.model, args.system or None, args.raw, args.backend, args.device, args.dtype)


def request_of_answer(args) -> SinksRequest:
    """The request to read the answers of one side of a stored run, by default with the model that wrote them."""
    from engine.analysis import answers

    if args.system is not None or args.raw:
        raise RequestError("--system and --raw belong to a typed prompt; the answer of a run is read after its own prompt as that stands.")
    run = stored(args.stored)
    chosen = answers.of_side(run, args.side)
    first = chosen[0]
    return SinksRequest(tuple(answers.asked(run, a) for a in chosen), args.model or first.facts.name, first.prompt.system, first.prompt.raw,
                        args.backend, args.device, args.dtype)


def stored(name: str) -> AnyRun:
    """A run by its id among the app's, or by the path of its file; RequestError in one sentence if it cannot be had."""
    from engine.run_files import read

    by_path = name.endswith(".json") or "/" in name or "\\" in name
    path = Path(name).expanduser() if by_path else folder("runs") / f"{name}.json"
    try:
        if not path.is_file():
            raise ValueError("There is no such file." if by_path else f"No run of that id is in {path.parent}; give its id or the path of its JSON file.")
        return read(path)
    except (ValueError, OSError, RuntimeError) as e:
        raise RequestError(f"--run {name[:200]} cannot be opened. {getattr(e, 'strerror', None) or e}") from None


def report(run: SinksRun, views: list[SinkView | None], alone: bool) -> dict[str, Any]:
    """JSON data: every position with its figures, what they amount to, and the run they come from, as it can be imported, without its arrays.

    `alone`: there was one prompt, whose figures stand at the top; else they stand in `prompts`, one entry each.
    `opening_sink` is the one that any text has at its first position: shown, and no part of health and of the sinks counted.
    `median` is that of ln attention, as the formula of z has it, and `median_attention` is e to its power. What is
    undefined is null, and a `reason` beside it says why. `text` is a token's own text, "" where it holds only part of a
    character; `bytes` (hex) always says it all.
    """
    data = plain_data(run)
    told = {key: data[key] for key in ("id", "created", "kind", "status", "notes", "models", "machine", "schema")}
    figures = [_figures(run, item, v) for item, v in zip(run.items, views)]
    return {**(figures[0] if alone and figures else {"prompts": figures}), **told, "run": data}


def _figures(run: SinksRun, item: SinkItem, view: SinkView | None) -> dict[str, Any]:
    head = {"label": item.label, "category": item.category, "tokens": len(item.prompt.ids), "refused": item.refused}
    if view is None:
        return head
    from engine.attention.view import rows

    s, h = view.scores, view.health
    return {
        **head, "sentence": view.sentence, "threshold": view.threshold, "edge_corrected": view.corrected,
        "health": h.value, "health_word": h.word, "health_reason": h.reason, "health_published": view.health_published,
        "health_published_reason": view.published_reason, "sinks_outside_template": h.count, "share_held": h.held, "share_drained": h.drained,
        "share_drained_by_answer": h.drained_answer, "opening_sink": {"positions": list(h.opening), "share": h.opening_held},
        "answer_start": item.answer_start, "source": item.source, "share_structural": view.structural_share,
        "share_learned_sinks": view.learned_share, "median": s.median, "median_attention": None if s.median is None else float(s.typical[0]),
        "scaled_mad": s.scaled_mad, "reason": s.reason,
        "seconds": item.seconds, "peak_extra_bytes": item.peak_extra_bytes, "row_error": item.sums.row_error, "first": item.first,
        "positions": [{**row, "text": own_text(bytes.fromhex(run.tokens.get(row["id"], ""))), "bytes": run.tokens.get(row["id"], "")}
                      for row in rows(view, run.tokens, run.special)]}


def describe(run: SinksRun, views: list[SinkView | None]) -> str:
    """The readable report: for each prompt its sentence, figures and tokens; then what was refused."""
    facts = run.models["model"]
    blocks = []
    for item, v in zip(run.items, views):
        name = f"{item.label}: " if item.label else ""
        blocks.append([f"{name}{v.sentence}", "", *_summary(item, v), "", *table(run, item, v)] if v else [f"refused: {name}{item.refused}"])
    notes = [f"note: {note}" for note in dict.fromkeys([*run.notes, *facts.notes])]
    return printable("\n\n".join("\n".join(block) for block in [*blocks, [f"{'model':<17} {facts.title} {facts.dtype} on {facts.device}", *notes]]))


def _summary(item: SinkItem, v: SinkView) -> list[str]:
    from engine.attention.health import percent

    s = v.scores
    which = "z′, edge-corrected" if v.corrected else "z"
    published = f"{v.health_published:.1f} (10 − 10·density − min(mean z, 5), from z)" if v.health_published is not None else f"n/a: {v.published_reason}"
    centre = f"{float(s.typical[0]):.3g}, scaled MAD of the logarithm {s.scaled_mad:.3f}" if s.median is not None else f"n/a: {s.reason}"
    start = item.answer_start
    rows = [("read", None if start is None else f"{item.source}: {start:,} tokens of prompt, then {len(v.ids) - start:,} of its answer"),
            ("threshold", f"{v.threshold:g} on {which}"), ("published formula", published),
            ("drained", "n/a" if v.health.drained is None else f"{percent(v.health.drained)} of all attention, beyond what typical tokens get"
             + ("" if v.health.drained_answer is None else f"; {percent(v.health.drained_answer)} by the answer's tokens")),
            ("opening sink", f"{percent(v.health.opening_held)} of all attention at the first position, as in any text; not counted"
             if v.sinks[list(v.health.opening)].any() else None),
            ("template", None if not v.structural.any() else
             f"its {int(v.structural.sum()):,} of {len(v.ids):,} tokens hold {percent(v.structural_share)} of all attention"),
            ("learned sinks", None if v.learned_share is None else f"{percent(v.learned_share)} of all attention goes to no token"),
            ("median attention", centre), ("position 0", f"the {item.first}"),
            ("reading", None if item.seconds is None else f"{item.seconds:.2f} s"
             + (f", {item.peak_extra_bytes / 1e6:.0f} MB more memory at its highest" if item.peak_extra_bytes is not None else ""))]
    return [f"{name:<17} {text}" for name, text in rows if text]


def table(run: SinksRun, item: SinkItem, v: SinkView) -> list[str]:
    """One line a token: its place, text, attention received, both scores, queries, and its two flags."""
    from engine.attention.view import rows

    lines = [f"{'':>6} {'token':<18} {'attention':>10} {'z':>7} {'z′':>7} {'queries':>8}"]
    for row in rows(v, run.tokens, run.special)[:LISTED]:
        flags = " ".join(word for word, on in (("opening", row["sink"] and row["opening"]), ("sink", row["sink"]), ("template", row["structural"]),
                                                ("answer", row["segment"] == "answer")) if on)
        lines.append(f"{row['index']:>6} {row['text'][:18]:<18} {row['attention']:>10.3g} {_z(row['z']):>7} {_z(row['z_corrected']):>7} "
                     f"{row['queries']:>8,}  {flags}".rstrip())
    if len(v.ids) > LISTED:
        lines.append(f"… {len(v.ids) - LISTED:,} more tokens; --json has them all")
    return lines


def _z(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}"


def _view(item: SinkItem, args) -> SinkView:
    from engine.attention.view import view

    return view(item, args.threshold, args.layers, args.heads, not args.include_structural, not args.no_edge_correction)


def _check_chosen(args, facts: dict[str, Any]) -> None:
    for what, chosen, count in (("layer", args.layers, facts.get("layers")), ("head", args.heads, facts.get("heads"))):
        if chosen and count and chosen[-1] >= count:
            raise RequestError(f"There is no {what} {next(i for i in chosen if i >= count)}; the model has {what}s 0 to {count - 1}.")
