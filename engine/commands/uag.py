"""`python -m engine uag`: a draft with another tokenizer, each translation strategy beside verifier-only."""

from __future__ import annotations

import argparse

from engine.analysis.metrics import NO_ENERGY
from engine.analysis.sentence import percent, times
from engine.analysis.timing import spent_by
from engine.analysis.uag import Figures, Ratio, Row, figures
from engine.commands import add_model_options, add_prompt_options, add_sampling_options, number, printable, prompts_of, sampling_of, stops_of
from engine.driver import load, perform
from engine.request import UagRequest, ordered
from engine.trace import Generation, Settings, UagItem, UagRun, plain_data
from engine.trace.uag import CAUSES, STRATEGIES


def add_parser(subparsers) -> None:
    p = subparsers.add_parser("uag", help="a draft with another tokenizer: translation strategies compared", allow_abbrev=False,
                              description="Answer a prompt verifier-only and with each strategy: a draft with another tokenizer writes, "
                                          "a translator turns it into the verifier's tokens, the verifier judges them. A model is "
                                          "bundled:NAME, a hub id, a folder or a .gguf file.")
    p.add_argument("--verifier", metavar="MODEL", required=True)
    p.add_argument("--draft", metavar="MODEL", required=True)
    add_prompt_options(p)
    p.add_argument("--strategy", type=several(str), default=STRATEGIES, metavar="NAME,…", help=f"({','.join(STRATEGIES)})")
    p.add_argument("--gamma", type=several(number("k")), default=(4,), metavar="K,…", help="draft tokens a round, 1-16 (4)")
    p.add_argument("--prefix", type=number("prefix"), default=5, metavar="P", help="committed tokens that context encodes again (5)")
    add_sampling_options(p)
    p.add_argument("--max-tokens", type=number("max_tokens"), default=64, metavar="N", help="(64)")
    p.add_argument("--repeats", type=number("repeats"), default=1, metavar="N", help="(1)")
    p.add_argument("--save", action="store_true", help="keep the run among the app's runs")
    add_model_options(p)


def several(kind):
    """An argparse type: values of `kind`, parted by commas."""
    def parse(text: str) -> tuple:
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of values parted by commas")
        return tuple(kind(part) for part in parts)

    return parse


def run(args) -> int:
    asked = request(args)

    def begin(signals, _progress):
        from engine.decoding import uag

        return uag.run(asked, load, signals.asked)

    def told(made: UagRun):
        found = figures(made)
        return lambda: report(made, found), lambda: describe(made, found)

    return perform(args, asked, begin, told)


def request(args) -> UagRequest:
    """The request that parsed options amount to; RequestError if the texts are none."""
    return UagRequest(prompts_of(args), args.verifier, args.draft, *ordered(args.strategy, args.gamma), args.prefix, args.system or None, args.raw,
                      Settings(max_tokens=args.max_tokens, repeats=args.repeats, sampling=sampling_of(args), stop=stops_of(args)),
                      args.backend, args.device, args.dtype)


def report(run: UagRun, found: Figures) -> dict:
    """JSON data: of one prompt `plain` and `strategies` where a reader looks first, of several one such pair in each of `items`;
    the figures, and the run they come from. With one k a strategy goes by its name, with several it is NAME@k."""
    several_ks = len(run.ks) > 1
    items = [{"label": i.label, "category": i.category, "prompt": i.prompt.text, "refused": i.refused,
              "plain": None if i.plain is None else _answer(i.plain), "strategies": _strategies(run, i, several_ks)} for i in run.items]
    first = {"plain": items[0]["plain"], "strategies": items[0]["strategies"]} if len(items) == 1 else {"items": items}
    return {**first, "disturbed": found.disturbed, "plain_joules_per_token": found.plain_joules.value,
            "sentences": list(found.sentences), "rows": [_row(r) for r in found.rows],
            "by_category": {c: [_row(r) for r in rows] for c, rows in found.by_category.items()}, "status": run.status,
            "notes": list(run.notes), "run": plain_data(run)}


def _answer(answer: Generation) -> dict:
    seconds = sum(d.decode for d in spent_by(answer))
    return {"ids": list(answer.ids), "text": answer.text, "finish": answer.finish,
            "tokens_per_second": sum(t.tokens for t in answer.timings) / seconds if seconds else None}


def _strategies(run: UagRun, item: UagItem, several_ks: bool) -> dict:
    from dataclasses import replace

    rows = figures(replace(run, items=(item,))).rows if item.results else ()
    answers = {(r.strategy, r.k): r.answer for r in item.results}
    return {f"{r.strategy}@{r.k}" if several_ks else r.strategy: {**_answer(answers[r.strategy, r.k]), **_row(r)} for r in rows}


def _row(r: Row) -> dict:
    """A row as JSON data; each ratio is a number, and its interval stands beside it."""
    ratios = {"acceptance_rate": r.acceptance, "draft_acceptance_rate": r.draft_acceptance, "tokens_per_pass": r.tokens_per_pass,
              "tokens_per_second": r.tokens_per_second, "speedup": r.speedup, "ceiling": r.ceiling, "translate_share": r.translate_share,
              "joules_per_token": r.joules_per_token}
    return {"strategy": r.strategy, "k": r.k, "prompts": r.prompts, "rounds": r.rounds, "proposed": r.acceptance.below,
            "accepted": r.acceptance.above, "draft_tokens": r.draft_acceptance.below, "draft_tokens_survived": r.draft_acceptance.above,
            "judged": r.judged, "refused": r.refused, "causes": r.causes, "translation_seconds": r.translate_seconds,
            **{name: ratio.value for name, ratio in ratios.items()},
            "intervals": {name: {"low": q.interval[0], "high": q.interval[1], "how": q.how} for name, q in ratios.items() if q.interval},
            "ids_equal": r.ids_equal, "ids_compared": r.ids_compared, "disturbed": r.disturbed}


def describe(run: UagRun, found: Figures) -> str:
    """The readable report: sentences, a table strategy × k, what was noted, and the answers of a single prompt."""
    lines = [*found.sentences, ""]
    if found.plain.value is not None:
        lines.append(f"verifier only  {found.plain.value:.1f} tok/s in decode, {found.plain.above:,} tokens")
    counted = any(r.joules_per_token.value is not None for r in found.rows)
    lines += [f"{'strategy':<9}{'k':>3}  {'candidates kept':<22}{'draft tokens kept':<22}{'per pass':>9}{'tok/s':>8}{'speed':>11}"
              f"{'translating':>13}{'  J/token' if counted else ''}  refused because of"] if found.rows else []
    for r in found.rows:
        causes = ", ".join(f"{c} {r.causes[c]}" for c in CAUSES if r.causes[c]) or "nothing"
        speed = "disturbed" if r.disturbed else "n/a" if r.speedup.value is None else times(r.speedup.value, 2)
        joules = f"{_form(r.joules_per_token, '.3g'):>9}" if counted else ""
        lines.append(f"{r.strategy:<9}{r.k:>3}  {_counted(r.acceptance):<22}{_counted(r.draft_acceptance):<22}{_form(r.tokens_per_pass, '.2f'):>9}"
                     f"{_form(r.tokens_per_second, '.1f'):>8}{speed:>11}"
                     f"{'n/a' if r.translate_share.value is None else f'{r.translate_share.value:.1%}':>13}{joules}  {causes}")
    lines += ["", f"energy per token  {_energy(run, found)}"]
    lines += [f"{role}: {m.title} {m.dtype} on {m.device}" for role, m in run.models.items()]
    notes = [*run.notes, *(n for m in run.models.values() for n in m.notes),
             *(n for i in run.items for g in (i.plain, *(r.answer for r in i.results)) if g for n in g.notes)]
    lines += [f"note: {note}" for note in dict.fromkeys(notes)]
    lines += [f"refused: {i.label + ': ' if i.label else ''}{i.refused}" for i in run.items if i.refused]
    if len(run.items) == 1 and run.items[0].plain:
        plain = run.items[0].plain
        lines += ["", f"VERIFIER ONLY ({len(plain.ids)} tokens, {plain.finish})", plain.text]
        for r in run.items[0].results:
            if r.answer.ids != plain.ids:
                lines += ["", f"{r.strategy.upper()}, k = {r.k} ({len(r.answer.ids)} tokens, {r.answer.finish})", r.answer.text]
    return printable("\n".join(lines))


def _energy(run: UagRun, found: Figures) -> str:
    """Verifier-only's, the strategies' being in the table; or why it is not known."""
    joules = found.plain_joules.value
    return f"n/a. {run.machine.energy or NO_ENERGY}" if joules is None else f"{joules:.3g} J verifier-only"


def _counted(q: Ratio) -> str:
    return "n/a" if q.value is None else f"{percent(q.value)} of {q.below:,}"


def _form(q: Ratio, form: str) -> str:
    return "n/a" if q.value is None else format(q.value, form)
