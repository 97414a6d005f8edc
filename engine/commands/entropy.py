"""`python -m engine entropy`: how sure a model is of each token of its answer."""

from __future__ import annotations

from engine.analysis.entropy import CONTINUATION, FIRST, OTHER, Trail, counted, figures, refused, sentence, shown, trails
from engine.commands import add_model_options, add_prompt_options, add_sampling_options, number, printable, prompts_of, sampling_of, stops_of
from engine.driver import load, perform
from engine.request import EntropyRequest
from engine.tokens import label
from engine.tokens import own_text
from engine.trace import EntropyRun, Settings, plain_data

LISTED = 400  # tokens of an answer that the table writes out; --json has them all


def add_parser(subparsers) -> None:
    p = subparsers.add_parser("entropy", help="how sure a model is of each token of its answer", allow_abbrev=False,
                              description="Answer a prompt, or a file of prompts, verifier-only, and give for each token the entropy of "
                                          "the model's raw softmax and of the distribution it was drawn from, in bits. A model is "
                                          "bundled:NAME, a hub id, a folder or a .gguf file.")
    p.add_argument("--model", metavar="MODEL", required=True)
    add_prompt_options(p)
    add_sampling_options(p)
    p.add_argument("--max-tokens", type=number("max_tokens"), default=64, metavar="N", help="(64)")
    p.add_argument("--save", action="store_true", help="keep the run among the app's runs")
    add_model_options(p)


def run(args) -> int:
    asked = request(args)

    def begin(signals, _progress):
        from engine.decoding import entropy

        return entropy.run(asked, load, signals.asked)

    return perform(args, asked, begin, lambda made: (lambda: report(made), lambda: describe(made)))


def request(args) -> EntropyRequest:
    """The request that parsed options amount to; RequestError if the texts are none."""
    return EntropyRequest(prompts_of(args), args.model, args.system or None, args.raw,
                          Settings(max_tokens=args.max_tokens, sampling=sampling_of(args), stop=stops_of(args)),
                          args.backend, args.device, args.dtype)


def report(run: EntropyRun) -> dict:
    """JSON data: every token of every answer where a reader looks first, the figures, and the run they come from.

    `text` is a token's own text, "" where it holds only part of a character; `bytes` (hex) always says it all.
    """
    found = trails(run)
    return {"sentence": sentence(run, figures(found)), "units": "bits", "figures": plain_data(figures(found)),
            "tokens": [row for n, trail in enumerate(found) for row in _rows(run, trail, n)],
            "refused": [{"label": name, "reason": why} for name, why in refused(run)], "run": plain_data(run)}


def _rows(run: EntropyRun, trail: Trail, n: int) -> list[dict]:
    return [{"answer": n, "label": trail.label, "index": i, "id": token, "text": own_text(trail.bytes[i]), "bytes": trail.bytes[i].hex(),
             "entropy_bits": trail.bits[i], "sampling_entropy_bits": trail.sampling_bits[i], "normalised": trail.normalised[i],
             "probability": trail.answer.probability[i] if i < len(trail.answer.probability) else None, "piece": trail.pieces[i],
             "top": [{"id": t, "text": own_text(bytes.fromhex(run.tokens.get(t, ""))), "probability": p}
                     for t, p in (trail.answer.top[i] if i < len(trail.answer.top) else ())]}
            for i, token in enumerate(trail.ids)]


def describe(run: EntropyRun) -> str:
    """The readable report: sentence, means with their counts, a table a token, what was refused."""
    found = trails(run)
    f = figures(found)
    facts = run.models["model"]
    lines = [sentence(run, f), ""]
    rows = [("model entropy", f"{_bits(f['entropy_bits'])}, mean of {counted(f['tokens'])}; highest {_bits(f['entropy_bits_max'])}"),
            ("sampling entropy", f"{_bits(f['sampling_entropy_bits'])}, after temperature and filters"),
            ("normalised", f"{f['normalised']:.3f}, model entropy / log2 {facts.vocabulary:,}" if f["normalised"] is not None else "n/a")]
    rows += [(kind, f"{_bits(f['words'][kind]['bits'])} over {counted(f['words'][kind]['tokens'])}")
             for kind in (FIRST, CONTINUATION, OTHER)]
    if f["words"]["interval"]:
        rows.append(("first − rest", _bits(f["words"]["difference"]) + _span(f["words"]["interval"], ", tokens taken as independent")))
    if len(f["categories"]) > 1:
        rows += [(f"category {c['category'] or '(none)'}", f"{_bits(c['bits'])} over {counted(c['tokens'])} of {counted(c['answers'], 'answer')}"
                  + _span(c["interval"])) for c in f["categories"]]
    rows.append(("model", f"{facts.title} {facts.dtype} on {facts.device}"))
    lines += [f"{name:<17} {text}" for name, text in rows] if found else []
    notes = [*run.notes, *facts.notes, *(n for t in found for n in t.answer.notes)]
    lines += [f"note: {note}" for note in dict.fromkeys(notes)]
    lines += [f"refused: {name + ': ' if name else ''}{why}" for name, why in refused(run)]
    for trail in found:
        lines += ["", *table(run, trail)]
    return printable("\n".join(lines))


def table(run: EntropyRun, trail: Trail) -> list[str]:
    """One line a token: its place, text, both entropies in bits, piece, and the five best with their probabilities."""
    lines = [f"{trail.label + ': ' if trail.label else ''}{counted(len(trail.ids))}, {trail.answer.finish}",
             f"{'':>5} {'token':<18} {'model':>7} {'sampling':>9}  {'':<12} top 5 (entropies in bits)"]
    special = frozenset(run.special)
    for i in range(min(len(trail.ids), LISTED)):
        best = "  ".join(f"{label(bytes.fromhex(run.tokens.get(t, '')), t in special)} {p:.3f}"
                         for t, p in (trail.answer.top[i] if i < len(trail.answer.top) else ()))
        lines.append(f"{i + 1:>5} {label(trail.bytes[i], trail.special[i])[:18]:<18} {shown(trail.bits[i]):>7} "
                     f"{shown(trail.sampling_bits[i]):>9}  {trail.pieces[i]:<12} {best}")
    if len(trail.ids) > LISTED:
        lines.append(f"… {len(trail.ids) - LISTED:,} more tokens; --json has them all")
    return lines


def _bits(value: float | None) -> str:
    return shown(value) + ("" if value is None else " bits")


def _span(interval: tuple[float, float] | None, more: str = "") -> str:
    return f" (95 %: {shown(interval[0])} to {shown(interval[1])}{more})" if interval else ""
