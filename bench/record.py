"""Record the run that Start replays.

    python -m bench.record [--prompt TEXT] [--gamma 3] [--tokens 128] [--repeats 3]

Decodes on this machine, which should have nothing else to do, and writes recorded/compare.json. Paths of the machine
are left out.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from engine.analysis.metrics import metrics
from engine.decoding.compare import run
from engine.models import registry
from engine.request import CompareRequest, Done
from engine.trace import Sampling, Settings, to_json

RECORDED = Path(__file__).resolve().parent.parent / "recorded" / "compare.json"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--prompt", default="List the planets of the solar system in order, one per line, each with one short fact.")
    p.add_argument("--gamma", type=int, default=3)
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--repeats", type=int, default=3)
    a = p.parse_args()
    asked = CompareRequest(a.prompt, "bundled:smollm2-135m", "bundled:smollm2-draft", settings=Settings(
        gamma=a.gamma, max_tokens=a.tokens, repeats=a.repeats, sampling=Sampling(temperature=a.temperature)))
    made = [e.run for e in run(asked, lambda name, backend, device, dtype: registry.load(name, device, dtype, backend)) if isinstance(e, Done)][-1]
    made = replace(made, models={role: replace(facts, path=facts.name) for role, facts in made.models.items()})
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(to_json(made), encoding="utf-8")
    print(metrics(made)["sentence"])


if __name__ == "__main__":
    main()
