"""Record the runs that the pages show before there is a run of one's own.

    python -m bench.record [--only compare,sinks,uag,entropy] [--prompt TEXT] [--gamma 3] [--tokens 128] [--repeats 3]

Decodes on this machine, which should have nothing else to do, and writes recorded/KIND.json. What the options ask for is of the
comparison alone; the other pages' runs are those of their own first prompts. Paths of the machine are left out, and of
attention what only a choice of layers needs.
"""

from __future__ import annotations

import argparse
import html
import importlib
import json
import re
from dataclasses import replace
from time import perf_counter

from cache import recorded
from engine.errors import RequestError
from engine.models import registry
from engine.models.home import write_atomic
from engine.request import Asked, CompareRequest, Done, EntropyRequest, SinksRequest, UagRequest
from engine.trace import KINDS, AnyRun, Sampling, Settings, arrays_of, to_json, with_arrays

ENGINES = {"compare": "engine.decoding.compare", "sinks": "engine.attention.run", "uag": "engine.decoding.uag", "entropy": "engine.decoding.entropy"}
LIMIT = 500_000  # bytes of a file
STRATEGY_TOKENS = 32  # of each of 13 answers: more would not fit
DIGITS = 5  # of every number: more than any view shows
VERIFIER = "bundled:smollm2-135m"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", default=",".join(ENGINES), help="kinds of run, parted by commas")
    p.add_argument("--prompt", default="List the planets of the solar system in order, one per line, each with one short fact.")
    p.add_argument("--gamma", type=int, default=3)
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--repeats", type=int, default=3)
    a = p.parse_args()
    kinds = [kind.strip() for kind in a.only.split(",") if kind.strip()]
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise SystemExit(f"There is no kind of run “{unknown[0]}”; choose among {', '.join(ENGINES)}.")
    for kind in kinds:
        began = perf_counter()
        try:
            run = made(requests(a)[kind])
            if why := disturbed(run):
                raise RequestError(f"{why} What was recorded before is kept; record on an idle machine.")
            text = as_text(run)
            recorded.FOLDER.mkdir(exist_ok=True)
            write_atomic(recorded.path(kind), text)
        except RequestError as e:
            raise SystemExit(f"{kind}: {e}") from None
        print(f"recorded/{kind}.json: {len(text.encode()) / 1000:.0f} kB, {perf_counter() - began:.0f} s. {headline(kind)}", flush=True)


def requests(a: argparse.Namespace) -> dict[str, CompareRequest | SinksRequest | UagRequest | EntropyRequest]:
    """What is recorded of each kind: the pages' own first prompts."""
    from ui.entropy import controls as entropy
    from ui.polish import controls as polish
    from ui.sinks import controls as sinks

    comparison = Settings(gamma=a.gamma, max_tokens=a.tokens, repeats=a.repeats, sampling=Sampling(temperature=a.temperature))
    ways = polish.DEFAULTS
    return {
        "compare": CompareRequest(a.prompt, VERIFIER, "bundled:smollm2-draft", settings=comparison),
        "sinks": SinksRequest((Asked(sinks.DEFAULT),), VERIFIER),
        "uag": UagRequest((Asked(polish.DEFAULT),), ways["verifier"], ways["draft"], tuple(ways["strategies"]), tuple(ways["ks"]), ways["prefix"],
                          raw=ways["raw"], settings=Settings(max_tokens=STRATEGY_TOKENS, repeats=a.repeats)),
        "entropy": EntropyRequest((Asked(entropy.DEFAULT),), VERIFIER, settings=Settings(max_tokens=entropy.DEFAULTS["tokens"]))}


def made(asked: CompareRequest | SinksRequest | UagRequest | EntropyRequest) -> AnyRun:
    """The run that `asked` gives here and now."""
    kind = {CompareRequest: "compare", SinksRequest: "sinks", UagRequest: "uag", EntropyRequest: "entropy"}[type(asked)]
    engine = importlib.import_module(ENGINES[kind])
    events = engine.run(asked, lambda name, backend, device, dtype: registry.load(name, device, dtype, backend))
    done = [e.run for e in events if isinstance(e, Done)]
    if not done or done[-1].status != "done":
        raise RequestError("The run did not come to its end, so the one recorded before is kept.")
    return done[-1]


def disturbed(run: AnyRun) -> str | None:
    """One sentence if its times are no result. Runs without speeds have none to disturb."""
    from engine.analysis import metrics, uag

    return metrics.metrics(run)["disturbed"] if run.kind == "compare" else uag.figures(run).disturbed if run.kind == "uag" else None


def as_text(run: AnyRun) -> str:
    """The run as a file that stands alone: no paths of this machine, its arrays inside, those only that every view needs."""
    models = {role: replace(facts, path=facts.name) for role, facts in run.models.items()}
    run = replace(run, id=recorded.id_of(run.kind), models=models)
    run = with_arrays(run, {name: None for name in arrays_of(run) if name.endswith(".near")})
    data = json.loads(to_json(run, arrays=True), parse_float=lambda digits: float(f"{float(digits):.{DIGITS}g}"))
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if len(text.encode()) > LIMIT:
        raise RequestError(f"The run would take {len(text.encode()) / 1000:.0f} kB of at most {LIMIT // 1000}; record a shorter one.")
    return text


def headline(kind: str) -> str:
    """What the page will say first, out of the whole document: so the file can be read and drawn."""
    from ui import kinds

    run, trouble = recorded.recorded(kind)
    if run is None:
        raise SystemExit(trouble)
    return html.unescape(re.search(r'class="headline">([^<]*)', kinds.takeaway(run).html())[1])


if __name__ == "__main__":
    main()
