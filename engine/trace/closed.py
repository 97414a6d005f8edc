"""Fields that hold one of a few words. Whoever reads a run, from the store or another hand, takes no other."""

from __future__ import annotations

from engine.trace.parts import BONUS, CORRECTION, ENTROPY_CUT, FINISHES, PLAIN, ROOM_CUT
from engine.trace.uag import CAUSES, STRATEGIES

STATUS = {"status": ("done", "stopped", "failed")}
WORDS = {  # class → field → its words; where a field may be None, that is not asked
    "Run": STATUS, "SinksRun": STATUS, "EntropyRun": STATUS, "UagRun": STATUS,
    "Generation": {"mode": ("plain", "speculative"), "finish": FINISHES},
    "Round": {"closing": (PLAIN, CORRECTION, BONUS), "cut": (ENTROPY_CUT, ROOM_CUT), "cause": CAUSES},
    "Settings": {"drafter": ("model", "lookup")}, "UagResult": {"strategy": STRATEGIES}}
