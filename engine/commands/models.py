"""`python -m engine models`: which models there are on this machine, and which engines can run them."""

from __future__ import annotations

from engine.commands import printable, require_writable, write_json
from engine.streams import out
from engine.trace import plain_data


def add_parser(subparsers) -> None:
    p = subparsers.add_parser("models", help="which models there are on this machine", allow_abbrev=False,
                              description="List the bundled models, those in SPECLENS_HOME/models, and those in the local "
                                          "Hugging Face cache.")
    p.add_argument("--json", metavar="PATH", help="write the list as one JSON object to PATH; - is standard output")


def run(args) -> int:
    from engine.models.registry import backends, listing

    require_writable(args.json)
    rows, engines = listing(), backends()
    if args.json:
        write_json({"models": plain_data(rows), "backends": plain_data(engines)}, args.json)
    if args.json != "-":
        out(table(rows) + "\n")
        for engine in engines:
            if not engine.available:
                out(printable(f"backend {engine.name} is not available: {engine.why}") + "\n")
    return 0


def table(rows) -> str:
    """One line a model: name, size on disk, parameters, how it is stored, where; or why it is not available."""
    width = max((len(r.name) for r in rows), default=0)
    lines = []
    for r in rows:
        detail = (f"{r.bytes / 1e6:>8,.0f} MB  {r.parameters / 1e6:>9,.1f} M parameters  {r.weights:<16}  {r.path}" if r.available
                  else f"not available: {r.why}")
        lines.append(printable(f"{r.name:<{width}}  {detail}").replace("\n", " "))
    return "\n".join(lines)
