"""`python -m engine compare`: verifier-only against speculative decoding of one prompt."""

from __future__ import annotations

from engine.analysis.metrics import NO_ENERGY, metrics
from engine.analysis.sentence import percent, times
from engine.commands import (add_model_options, add_pair_options, add_sampling_options, number, printable, prompt_of, require_text,
                             sampling_of, stops_of)
from engine.driver import load, perform
from engine.errors import RequestError
from engine.request import CompareRequest
from engine.trace import Generation, Run, Settings, plain_data

DEFAULTS = Settings()


def add_parser(subparsers) -> None:
    p = subparsers.add_parser("compare", help="verifier-only against speculative decoding", allow_abbrev=False,
                              description="Write one answer twice, verifier-only and speculative, and say what it cost. "
                                          "A model is bundled:NAME, a hub id, a folder or a .gguf file.")
    add_pair_options(p, lookup="draft by prompt lookup, without a draft model")
    prompt = p.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT")
    prompt.add_argument("--prompt-file", metavar="FILE", help="the whole file is the prompt; - is standard input")
    p.add_argument("--system", metavar="TEXT", help="system message")
    p.add_argument("--raw", action="store_true", help="no chat template")
    p.add_argument("--gamma", type=number("gamma"), default=DEFAULTS.gamma, metavar="N", help="draft tokens a round, 0-16; 0 drafts nothing (4)")
    p.add_argument("--entropy-stop", type=number("entropy_stop"), default=None, metavar="H",
                   help="stop drafting above this normalised draft entropy, 0-1 (off)")
    p.add_argument("--ngram", type=number("lookup_ngram"), default=DEFAULTS.lookup_ngram, metavar="N",
                   help="longest n-gram that --lookup looks for earlier in the text, 1-8 (3)")
    p.add_argument("--ngram-min", type=number("lookup_shortest"), default=DEFAULTS.lookup_shortest, metavar="N",
                   help="shortest n-gram that --lookup takes a match of (1)")
    add_sampling_options(p)
    p.add_argument("--max-tokens", type=number("max_tokens"), default=DEFAULTS.max_tokens, metavar="N", help="(128)")
    p.add_argument("--repeats", type=number("repeats"), default=DEFAULTS.repeats, metavar="N", help="(1)")
    p.add_argument("--save", action="store_true", help="keep the run among the app's runs")
    add_model_options(p)


def run(args) -> int:
    asked = request(args)

    def begin(signals, _progress):
        from engine.decoding import compare

        return compare.run(asked, load, signals.asked)

    def told(made: Run):
        figures = metrics(made)
        return lambda: report(made, figures), lambda: describe(made, figures)

    return perform(args, asked, begin, told)


def request(args) -> CompareRequest:
    """The request that parsed options amount to; RequestError if the texts are none."""
    require_text("system message", args.system)
    if args.lookup and args.entropy_stop is not None:
        raise RequestError("--entropy-stop is for a draft model; prompt lookup copies text and has no entropy.")
    settings = Settings(gamma=args.gamma, drafter="lookup" if args.lookup else "model", entropy_stop=args.entropy_stop,
                        lookup_ngram=args.ngram, lookup_shortest=args.ngram_min, stop=stops_of(args),
                        max_tokens=args.max_tokens, repeats=args.repeats, sampling=sampling_of(args))
    return CompareRequest(prompt=prompt_of(args), verifier=args.verifier, draft=args.draft, system=args.system or None, raw=args.raw,
                          settings=settings, backend=args.backend, device=args.device, dtype=args.dtype)


def report(run: Run, figures: dict) -> dict:
    """The run as JSON data, with its figures and each side's decode rate where a reader looks for it first."""
    data = {**plain_data(run), "metrics": plain_data(figures)}
    for side in ("plain", "speculative"):
        if data[side] is not None:
            data[side]["tokens_per_second"] = figures[f"{side}_tokens_per_second"]
    return data


def describe(run: Run, figures: dict) -> str:
    """The compact report for a reader at a terminal: sentence, figures with their denominators, both texts."""
    f = figures
    rows = [
        ("verifier only", _rate(f, "plain")),
        ("speculative", _rate(f, "speculative")),
        ("acceptance", None if f["acceptance_rate"] is None else
         f"{percent(f['acceptance_rate'])} of {f['proposed']} draft tokens; per judged token {_share(f['alpha'])} of {f['judged']}"),
        ("tokens per pass", None if f["tokens_per_pass"] is None else f"{f['tokens_per_pass']:.2f} over {f['rounds']} verifier passes"),
        ("draft token cost", None if f["cost_ratio"] is None else
         f"{f['cost_ratio']:.3f} of a verifier pass measured, {_plain(f['cost_ratio_flops'], '.3f')} by FLOPs"),
        ("ceiling", None if f["ceiling"] is None else
         f"{times(f['ceiling'], 2)} with this run's costs, {_plain(f['ceiling_flops'], '.2f')}× by FLOPs"),
        ("break-even", "none below 100 % acceptance" if f["break_even"] is None and f["ceiling"] is not None else
         None if f["break_even"] is None else f"{percent(f['break_even'])} acceptance"),
        ("orchestration", None if f["orchestration_share"] is None else f"{f['orchestration_share']:.1%} of speculative decode time"),
        ("energy per token", _energy(f, run)),
        ("models", " · ".join(f"{role} {m.title} {m.dtype} on {m.device}" for role, m in run.models.items())),
    ]
    lines = [f["sentence"], ""]
    lines += [f"{label:<17} {text}" for label, text in rows if text]
    lines += [f"note: {note}" for note in _notes(run)]
    for title, side in (("VERIFIER ONLY", run.plain), ("SPECULATIVE", run.speculative)):
        if side is not None:
            lines += ["", f"{title} ({len(side.ids)} tokens, {side.finish})", side.text]
    return printable("\n".join(lines))


def _rate(f: dict, side: str) -> str | None:
    rate, span = f[f"{side}_tokens_per_second"], f[f"{side}_tokens_per_second_range"]
    if rate is None:
        return None
    between = f" ({span[0]:.1f}–{span[1]:.1f})" if span[0] != span[1] else ""
    prefill = f[f"{side}_prefill_tokens_per_second"]
    return f"{rate:.1f} tok/s{between} in decode" + (f", {prefill:.0f} tok/s in prefill" if prefill is not None else "")


def _energy(f: dict, run: Run) -> str:
    """Joules a token of both sides, or why they are not known."""
    plain, speculative = f["plain_joules_per_token"], f["speculative_joules_per_token"]
    if plain is None and speculative is None:
        return f"n/a. {run.machine.energy or NO_ENERGY}"
    return f"{_plain(speculative, '.3g')} J speculative, {_plain(plain, '.3g')} J verifier-only"


def _share(value: float | None) -> str:
    return "n/a" if value is None else percent(value)


def _plain(value: float | None, form: str) -> str:
    return "n/a" if value is None else format(value, form)


def _notes(run: Run) -> list[str]:
    sides: list[Generation] = [g for g in (run.plain, run.speculative) if g is not None]
    notes = [*run.notes, *(n for m in run.models.values() for n in m.notes), *(n for g in sides for n in g.notes)]
    return list(dict.fromkeys(notes))
