"""`python -m engine tokens`: one text as several tokenizers cut it, laid on its characters and compared."""

from __future__ import annotations

from engine.analysis.sentence import percent
from engine.commands import Progress, printable, quiet, read_prompt_file, require_text, require_writable, write_json
from engine.errors import RequestError
from engine.streams import out

LISTED = 400  # tokens of a lane that the table writes out; --json has them all


def add_parser(subparsers) -> None:
    p = subparsers.add_parser("tokens", help="one text as several tokenizers cut it", allow_abbrev=False,
                              description="Cut one text with one or more tokenizers and say where they agree, and which Polish "
                                          "letters they split. A tokenizer is bundled:NAME, a hub id, a folder, a tokenizer.json or "
                                          "a .gguf file; no model is loaded.")
    p.add_argument("--tokenizer", metavar="NAME", action="append", required=True, help="may be given several times; the first is the reference")
    text = p.add_mutually_exclusive_group(required=True)
    text.add_argument("--text", metavar="TEXT")
    text.add_argument("--prompt-file", metavar="FILE", help="the whole file is the text; - is standard input")
    p.add_argument("--special", action="store_true", help="special tokens written in the text count as themselves, not as letters")
    p.add_argument("--json", metavar="PATH", help="write the result as one JSON object to PATH; - is standard output")


def run(args) -> int:
    text = args.text if args.prompt_file is None else read_prompt_file(args.prompt_file)
    require_text("text", text)
    if not text:
        raise RequestError("The text is empty; give some with --text or --prompt-file.")
    require_writable(args.json)
    with quiet(args.debug) as terminal, Progress(terminal) as progress:
        progress.say("Reading the tokenizers", now=True)
        from engine.alignment import align, as_data
        from engine.models.tokenizers import load

        loaded = {name: load(name) for name in dict.fromkeys(args.tokenizer)}
        result = align(text, [loaded[name] for name in args.tokenizer], args.tokenizer, args.special)
    if args.json:
        write_json(as_data(result), args.json)
    if args.json != "-":
        out(describe(result) + "\n")
    return 0


def describe(a) -> str:
    """For a reader at a terminal: what it says in sentences, the lanes with their cuts, the numbers with their denominators."""
    from engine.alignment import sentences

    width = max(len(lane.title) for lane in a.lanes)
    lines = sentences(a)
    for lane in a.lanes:
        lines += ["", f"{lane.title:<{width}}  │{drawn(lane, a.text)}│", *(f"{'':<{width}}  {note}" for note in lane.notes)]
    lines += ["", f"{'':<{width}}  tokens  per word  letters with a diacritic split"]
    for number, lane in enumerate(a.lanes):
        rate, split = a.tokens_per_word(number), a.splits(number)
        lines.append(f"{lane.title:<{width}}  {len(lane.tokens):>6}  {'n/a' if rate is None else f'{rate:.2f}':>8}  "
                     f"{split} of {len(a.letters)}" + (f" ({percent(split / len(a.letters))})" if a.letters else ""))
    for pair in a.pairs:
        first, second = a.lanes[pair.first].title, a.lanes[pair.second].title
        lines += ["", f"{first} against {second}: {pair.both} cuts in both, {pair.only_first} only in {first}, {pair.only_second} only in {second}"]
        if pair.f1 is not None:
            figures = [f"{word} {'n/a' if value is None else f'{value:.2f}'}"
                       for word, value in (("precision", pair.precision), ("recall", pair.recall), ("F1", pair.f1))]
            lines.append(f"  {', '.join(figures)}")
        if pair.lone and a.letters:
            lines.append(f"  {pair.lone_touching} of the {pair.lone} mismatched cuts touch a letter with a diacritic "
                         f"({percent(pair.lone_touching / pair.lone)})")
    return printable("\n".join(lines))


def drawn(lane, text: str) -> str:
    """The tokens of a lane between bars, everything invisible made visible. Tokens that hold part of a character are shown
    as bytes, the last of them with the character that they make together."""
    from engine.tokens import label, visible

    shown, end = [], 0
    for token, after in zip(lane.tokens[:LISTED], [*lane.tokens[1:LISTED + 1], None]):
        shown.append(label(bytes.fromhex(token.bytes), token.special) if token.bytes else "")
        if token.start < end and (after is None or after.start >= end):
            shown[-1] += f" ⌊{visible(text[token.start:end])}"
        end = token.end
    more = len(lane.tokens) - LISTED
    return "│".join(shown) + (f"│… {more} more, all of them with --json" if more > 0 else "")
