"""What runs of every kind are made of. Times are seconds, entropies bits, probabilities 0–1; None is "not measured" or "undefined"."""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA = 1

PLAIN, ACCEPTED, REJECTED, DISCARDED, CORRECTION, BONUS = (
    "plain", "accepted", "rejected", "discarded", "correction", "bonus")
STOP_STRING, FAILED = "stop string", "failed"
FINISHES = ("eos", STOP_STRING, "length", "context", "stopped", FAILED)  # why an answer ended
ENTROPY_CUT, ROOM_CUT = "entropy", "room"


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn from logits; the very same setting for verifier and draft.

    `temperature` 0 is greedy. `top_k` 0, `top_p` 1, `min_p` 0 and `repetition_penalty` 1 switch a filter off.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True)
class Prompt:
    """`text` as typed; `ids` as the verifier read it (chat template applied unless `raw`)."""

    text: str
    ids: tuple[int, ...]
    system: str | None = None
    raw: bool = False
    template: bool = True  # False: raw text, because it was asked for or the model has no template


@dataclass(frozen=True)
class ModelFacts:
    """What a loaded model is. `asked_*` is what the request said, the plain name what was really used."""

    name: str  # as asked for: bundled:NAME, hub id, folder, .gguf file
    title: str  # short, for a legend
    path: str  # where the weights lie
    revision: str | None  # hub commit or the first 12 hex digits of the weights' sha256
    architecture: str
    layers: int
    width: int
    parameters: int
    flops_per_token: int  # 2 × weights a token passes through (a tied head counts once, an untied input embedding not)
    vocabulary: int  # usable token ids
    context: int | None  # positions
    tied_head: bool
    weights: str  # how the weights are stored, e.g. "Q4_1 → bfloat16"
    backend: str
    backend_version: str
    device: str
    asked_device: str
    dtype: str
    asked_dtype: str
    bytes: int  # memory of the loaded weights
    load_seconds: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Machine:
    system: str  # "Linux 6.1", "macOS 15.2"
    chip: str
    cores: int
    memory_bytes: int
    python: str
    packages: dict[str, str]  # name → version
    energy: str = ""  # why energy cannot be measured here, in one sentence; empty where it can, or where nobody asked


@dataclass(frozen=True)
class Round:
    """One verifier pass. Without proposals it is an ordinary decoding step.

    The columns `q` … `draft_normalised` run over `proposed`; `state` says what became of each.
    """

    proposed: tuple[int, ...] = ()
    accepted: int = 0
    emitted: tuple[int, ...] = ()  # accepted proposals, then the closing token unless the round ended before one
    closing: str | None = PLAIN  # plain, correction or bonus; None when an end token or a near tie (`tie`) ended the round first
    q: tuple[float | None, ...] = ()  # draft's probability of each proposal; None for a point mass (prompt lookup)
    p: tuple[float | None, ...] = ()  # verifier's probability of each proposal, where it was scored
    draw: tuple[float | None, ...] = ()  # uniform draw that judged it; None if not judged, or greedy
    draft_entropy: tuple[float | None, ...] = ()  # bits, raw softmax of the draft
    draft_normalised: tuple[float | None, ...] = ()  # the same / log2(usable vocabulary of the draft)
    draft_seconds: float = 0.0  # inside the draft's forwards
    verify_seconds: float = 0.0  # inside the verifier's forward
    end: float = 0.0  # seconds from the start of decode to the end of this round
    note: str | None = None  # e.g. why the draft proposed nothing
    asked: int | None = None  # draft tokens asked for (γ); None: nobody drafts, or a run from before this was kept
    cut: str | None = None  # why fewer were drafted: "entropy" (the bound on the draft's entropy) or "room" (before the end)
    tie: float | None = None  # the verifier's top-2 gap (logits) that was too small to judge in a block: the next round decides
    # Of a draft with another tokenizer only:
    draft_ids: tuple[int, ...] = ()  # what it wrote, in its own ids; `proposed` is what was sent to the verifier
    translate_seconds: float = 0.0  # spent between the two tokenizers
    cause: str | None = None  # why the first refused proposal was refused (engine.trace.uag.CAUSES)
    gap: float | None = None  # the verifier's top-2 gap in probability (raw softmax) where it refused

    def state(self, place: int) -> str:
        """What became of proposal `place`. Without a correction nothing was refused: what follows was never judged."""
        if place < self.accepted:
            return ACCEPTED
        return REJECTED if place == self.accepted and self.closing == CORRECTION else DISCARDED


@dataclass(frozen=True)
class Timing:
    """One repeat of one mode. Load and warm-up are outside; prefill and decode are separate windows.

    `joules` is of the whole machine from the start of decode to its end, what the clocks leave out included: the first repeat's
    entropies, and whoever reads the tokens meanwhile.
    """

    prefill_seconds: float
    decode_seconds: float
    verify_seconds: float  # inside verifier forwards, decode only
    draft_seconds: float  # inside draft forwards, decode only
    tokens: int  # emitted
    passes: int  # verifier passes in decode
    joules: float | None = None  # None where energy is not counted
    # A column each over the passes, seconds to the microsecond; all empty in runs made before they were kept:
    fed: tuple[int, ...] = ()  # tokens the verifier's pass was over
    verify: tuple[float, ...] = ()  # inside its forward
    draft: tuple[float, ...] = ()  # inside the draft's forwards before it
    rest: tuple[float, ...] = ()  # of the round, outside both
    # Processor seconds from the start of decode to its end, what the clocks leave out included, on the cores this process may use:
    processor_seconds: float | None = None  # this process's, all threads
    others_seconds: float | None = None  # other programs'; None where the system does not count them
    idle_seconds: float | None = None


@dataclass(frozen=True)
class Generation:
    """One mode's answer. `rounds` are those of the first repeat; `timings` has one entry a repeat.

    `entropy`, `top` and `probability` run over `ids`: the verifier's model entropy in bits, its five best
    (id, probability) pairs, and the probability it gave the emitted token — all of the raw softmax. `sampling_entropy` is
    that of the distribution a token was really drawn from (after penalty, temperature and filters), in bits; 0 when greedy.
    """

    mode: str  # "plain" or "speculative"
    ids: tuple[int, ...] = ()
    text: str = ""
    finish: str = "length"  # one of FINISHES
    entropy: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    probability: tuple[float, ...] = ()
    rounds: tuple[Round, ...] = ()
    timings: tuple[Timing, ...] = ()
    notes: tuple[str, ...] = ()
    sampling_entropy: tuple[float, ...] = ()
    differing: tuple[int, ...] = ()  # repeats, counted from 2, that gave other tokens than the first
    guard: float | None = None  # top-2 gap (logits) under which a block's greedy choice is not trusted; 0: blocks equal single rows
