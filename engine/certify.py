"""Proof, on the pair at hand, that speculative decoding changes the speed of the answer and nothing else.

Four checks, and a fifth where the same model can be read by another engine too, each with a figure:

1. self-draft: with the draft equal to the verifier every judged token is accepted, greedy and sampling;
2. fresh prefill: the logits scored in the rounds of a real run equal a cache-free forward over the same ids;
3. greedy equality: speculative ids equal verifier-only ids on every prompt;
4. chi-square: first tokens of speculative sampling follow the verifier's own distribution;
5. both engines: torch and MLX score the same texts alike, so neither has misread the model's config.

Kernels may round differently for one row and for several, visibly so in half precision. So the rounding of the
verifier is measured first, without any speculation: a text is read one token at a time and again in blocks, and ε is
the largest difference of a logit between the two. A round that differs from its fresh forward by more than
2ε (both have rounded), a refused self-draft token or a changed greedy token that rounding by ε cannot explain, fails.
ε itself must stay within LARGEST_ROUNDING, or the first check that rests on it fails too.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import math
from dataclasses import dataclass, replace
from typing import Callable, Sequence

import numpy as np

from engine.audit import Recorder, apart, chi_square, forward, gap, read, rounding, softmax
from engine.decoding.compare import drafter_for
from engine.decoding.frame import drain
from engine.decoding.loop import decode
from engine.errors import RequestError
from engine.models.base import Model
from engine.models.home import folder, home, write_atomic
from engine.pair import check_models
from engine.prompts import build, check_length
from engine.sampling import Uniforms
from engine.trace import CORRECTION, ModelFacts, Prompt, Round, Sampling, Settings, plain_data

LARGEST_ROUNDING = {"float32": 1e-3, "float16": 0.5, "bfloat16": 2.0}  # logits; a wrong cache moves them by far more
LARGEST_SHIFT = {"float32": 1e-3, "float16": 0.02, "bfloat16": 0.05}  # mean total variation between two engines' distributions
LARGEST_ENTROPY = 1e-3  # bits between two engines in float32
SMALLEST_P = 0.001  # a sound implementation fails the chi-square test once in a thousand pairs
DRAWS = 2000
AUDITED = 3  # prompts whose every round is compared with a fresh forward, and on which ε is measured
WARM = Sampling(temperature=0.7, top_p=0.9)

PROMPTS = (
    "Explain photosynthesis step by step.",
    "Write a Python function that reverses a string.",
    "List the first ten prime numbers.",
    "Count from 1 to 30.",
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Translate to German: The cat sleeps on the sofa.",
    "Opowiedz krótko o Krakowie.",
    "Summarise: Rain fell for three days, the river rose, and the old bridge was closed until Monday.",
    "Give me a JSON object with the keys name, age and city.",
    "Repeat exactly: one two three four five six seven eight nine ten",
    "Why is the sky blue?",
    "2 + 2 = 4, 3 + 3 = 6, 4 + 4 =",
    "Write a polite e-mail that cancels a meeting.",
    "SELECT name FROM people WHERE",
    "Name three differences between a frog and a toad.",
    "Once upon a time, in a village by the lake,",
    "<ul><li>apple</li><li>pear</li>",
    "Is 91 a prime number? Answer yes or no and say why.",
    "Describe the colour red to somebody who cannot see. 🙂",
    "A B A B A B A B A B",
    "How do I boil an egg?",
)


@dataclass(frozen=True)
class Check:
    name: str
    passed: bool
    figure: float | None
    sentence: str


@dataclass(frozen=True)
class Certificate:
    """What was checked, on what, and when. `key` stands for the pair, its precision, backend and device."""

    key: str
    created: str  # ISO 8601, UTC
    verifier: str
    draft: str | None
    dtype: str
    device: str
    backend: str
    rounding: float  # ε, logits
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(c.passed for c in self.checks)


def certify(verifier: Model, draft: Model | None, prompts: Sequence[str] = PROMPTS, *, gamma: int = 4, max_tokens: int = 32,
            draws: int = DRAWS, tell: Callable[[str], None] | None = None, stop: Callable[[], bool] | None = None,
            twin: Callable[[Model], Model] | None = None) -> Certificate:
    """Run the checks on loaded models and keep the certificate. Without a draft, prompt lookup is certified.

    `twin`: loads a model once more in the other engine, or raises a RequestError that says why it cannot
    (`engine.models.registry.twin`); None leaves that check out. `tell` hears one line about what is being done. Stopping
    raises Stopped and keeps nothing.
    """
    tell, stop = tell or (lambda text: None), stop or (lambda: False)
    check_models(verifier, draft or verifier)
    texts = [build(verifier.vocabulary, p) for p in prompts]
    greedy = Settings(gamma=gamma, drafter="model" if draft else "lookup", max_tokens=max_tokens)
    plain = []
    for i, prompt in enumerate(texts):
        tell(f"Verifier only, prompt {i + 1} of {len(texts)}")
        plain.append(_ids(_decode("plain", verifier, None, prompt, greedy, stop)))
    tell("Rounding of one-token and several-token passes")
    epsilon = max((rounding(verifier, [*a.ids, *b], gamma + 1) for a, b in zip(texts[:AUDITED], plain)), default=0.0)
    checks = [_self_draft(verifier, texts[:AUDITED], gamma, max_tokens, epsilon, tell, stop)]
    checks.append(_fresh_prefill(verifier, draft, texts[:AUDITED], greedy, epsilon, tell, stop))
    checks.append(_greedy_equality(verifier, draft, texts, plain, greedy, epsilon, tell, stop))
    checks.append(_chi_square(verifier, draft, texts, draws, tell, stop))
    if twin is not None:
        checks.append(_both_engines(verifier, draft, [[*a.ids, *b] for a, b in zip(texts[:AUDITED], plain)], twin, tell, stop))
    facts, other = verifier.facts, draft.facts if draft else None
    certificate = Certificate(
        key=pair_key(facts, other), created=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        verifier=facts.title, draft=other.title if other else None, dtype=facts.dtype, device=facts.device,
        backend=f"{facts.backend} {facts.backend_version}", rounding=epsilon, checks=tuple(checks))
    _save(certificate)
    return certificate


class Stopped(Exception):
    """The checks were stopped before they were complete."""


# ------------------------------------------------------------------------------------------------------- checks


def _self_draft(verifier: Model, texts, gamma: int, max_tokens: int, epsilon: float, tell, stop) -> Check:
    """Acceptance with the draft equal to the verifier. A refusal counts unless rounding by ε can explain it:
    greedy, a top-2 gap of at most 2ε; sampling, p/q of at least exp(−4ε/T), the normalisers having moved too."""
    judged = accepted = unexplained = 0
    for sampling in (Sampling(), Sampling(temperature=1.0, seed=1)):
        settings = Settings(gamma=gamma, max_tokens=max_tokens, sampling=sampling)
        for i, prompt in enumerate(texts):
            tell(f"Self-draft, {'greedy' if sampling.greedy else 'sampling'}, prompt {i + 1} of {len(texts)}")
            text = list(prompt.ids)
            for r in _decode("speculative", verifier, verifier, prompt, settings, stop):
                refused = r.closing == CORRECTION
                judged, accepted = judged + r.accepted + refused, accepted + r.accepted
                if refused and sampling.greedy:
                    unexplained += gap(verifier, text + list(r.emitted[:-1])) > 2 * epsilon
                elif refused:
                    unexplained += r.p[r.accepted] / r.q[r.accepted] < math.exp(-4 * epsilon)
                text += r.emitted
    rate = accepted / judged if judged else None
    passed = judged > 0 and not unexplained and epsilon <= _largest(verifier)
    words = f"{accepted:,} of {judged:,} judged tokens accepted with the verifier as its own draft"
    if accepted < judged:
        words += f"; {judged - accepted - unexplained} of the refusals are within rounding (ε = {epsilon:.2g} logits)"
    return Check("self-draft", passed, rate, words + ".")


def _fresh_prefill(verifier: Model, draft: Model | None, texts, settings: Settings, epsilon: float, tell, stop) -> Check:
    """Largest difference between logits scored in rounds and a fresh session's forward over the same ids; the total
    variation between their distributions says what it means."""
    worst = distance = 0.0
    rows = 0
    for i, prompt in enumerate(texts):
        tell(f"Rounds against fresh prefill, prompt {i + 1} of {len(texts)}")
        audited = Recorder(verifier)
        _decode("speculative", audited, draft, prompt, settings, stop)
        for read, scored in audited.scored:
            if stop():
                raise Stopped
            fresh = forward(verifier, read, len(scored))
            rows += len(scored)
            worst = max(worst, float(np.abs(fresh - scored).max()))
            distance = max(distance, float(np.abs(softmax(fresh) - softmax(scored)).sum(-1).max() / 2))
    bound = max(2 * epsilon, 1e-6) if verifier.facts.dtype != "float32" else _largest(verifier)
    return Check("fresh prefill", rows > 0 and worst <= bound, worst,
                 f"logits of {rows} scored positions differ from a cache-free forward by at most {worst:.2g} "
                 f"(allowed {bound:.2g}), their distributions by {distance:.2%} in total variation.")


def _greedy_equality(verifier: Model, draft: Model | None, texts, plain, settings: Settings, epsilon: float, tell, stop) -> Check:
    """How many prompts give the very same ids. A difference passes only where the verifier's two best tokens are
    closer than rounding can move them: a gap of at most 2ε."""
    equal, differences, unexplained = 0, [], 0
    for i, (prompt, expected) in enumerate(zip(texts, plain)):
        tell(f"Greedy equality, prompt {i + 1} of {len(texts)}")
        got = _ids(_decode("speculative", verifier, draft, prompt, settings, stop))
        if got == expected:
            equal += 1
            continue
        at = next((j for j, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        distance = gap(verifier, [*prompt.ids, *expected[:at]])
        unexplained += distance > 2 * epsilon or len(got) == at or len(expected) == at
        differences.append(f"prompt {i + 1} differs at index {at} with a top-2 gap of {distance:.2g}")
    words = f"{equal} of {len(texts)} prompts give the very same ids as verifier-only"
    if differences:
        words += f" ({'; '.join(differences)}; rounding explains gaps up to {2 * epsilon:.2g})"
    return Check("greedy equality", bool(texts) and not unexplained, equal / len(texts) if texts else None, words + ".")


def _chi_square(verifier: Model, draft: Model | None, texts, draws: int, tell, stop) -> Check:
    """First tokens of `draws` seeded rounds against the verifier's distribution, at the flattest of the contexts, without
    filters and at temperature 0.7 / top-p 0.9. The smaller p-value is the figure; each must exceed SMALLEST_P."""
    scores = []
    for prompt in texts:
        row = softmax(forward(verifier, prompt.ids, 1))[0]
        scores.append(float(-(row * np.log(np.maximum(row, 1e-30))).sum()))
    context = list(texts[int(np.argmax(scores))].ids)
    results = []
    for sampling in (Sampling(temperature=1.0), WARM):
        tell(f"Chi-square, {draws} draws at temperature {sampling.temperature}")
        observed, expected = _first_tokens(verifier, draft, context, sampling, draws, stop)
        results.append(chi_square(observed, expected))
    smallest = min(r[2] for r in results)
    words = "; ".join(f"χ² {x:.1f} on {df} degrees of freedom, p = {p:.3f}" for x, df, p in results)
    return Check("chi-square", smallest > SMALLEST_P, smallest,
                 f"{draws:,} sampled first tokens against the verifier's distribution, without filters and at temperature 0.7 / "
                 f"top-p 0.9: {words}.")


def _both_engines(verifier: Model, draft: Model | None, texts: Sequence[list[int]], twin, tell, stop) -> Check:
    """Largest difference of a logit between this engine and the other over the same ids. A config read otherwise leaves the
    text fluent and moves logits by far more than rounding. Passes without a figure where the other engine cannot load it."""
    worst = bits = shift = 0.0
    rows, passed, missing = 0, True, ""
    for model in {id(m): m for m in (verifier, draft) if m is not None}.values():
        tell(f"{model.facts.title} in the other engine")
        try:
            other = twin(model)
        except RequestError as e:
            missing += f" Not compared: {e}"
            continue
        names = f"{model.facts.backend} and {other.facts.backend}"
        try:
            for ids in texts:
                if stop():
                    raise Stopped
                ids = ids[: min(m.facts.context or len(ids) for m in (model, other))]
                found = apart(model, other, ids)
                rows, worst, bits, shift = rows + len(ids), max(worst, found[0]), max(bits, found[1]), max(shift, found[2])
            exact = {model.facts.dtype, other.facts.dtype} == {"float32"}
        finally:
            other.close()
        kind = "float32" if exact else max((model.facts.dtype, other.facts.dtype), key=LARGEST_ROUNDING.get)
        passed &= worst <= LARGEST_ROUNDING[kind] and shift <= LARGEST_SHIFT[kind] and (not exact or bits <= LARGEST_ENTROPY)
    if not rows:
        return Check("both engines", True, None, missing.strip())
    return Check("both engines", passed, worst,
                 f"logits of {rows} positions differ between {names} by at most {worst:.2g} (allowed {LARGEST_ROUNDING[kind]:.2g}), model "
                 f"entropy by at most {bits:.2g} bit, and distributions by {shift:.2%} in mean total variation.{missing}")


def _first_tokens(verifier: Model, draft: Model | None, context: list[int], sampling: Sampling, draws: int, stop):
    """Counts of the first emitted token over `draws` seeds, and the verifier's distribution (both of shape (width,)).

    The logits are real and read once; drawing, judging and the residual are done anew for every seed. Without a draft
    the verifier's second best token is proposed as a point mass, so that acceptance and refusal both occur.
    """
    ops, width = verifier.ops, verifier.width
    logits = read(verifier, [*context, context[-1]], 2)  # the position judged, and one after it whose draw is not counted
    p = ops.filtered(logits, sampling)
    if sampling.top_p < 1:
        expected = _dense(ops, p, width)
    else:  # independent of the filter: the softmax in double precision
        expected = softmax(np.array(ops.to_host(logits))[:1] / sampling.temperature)[0]
    if draft is None:
        proposal = ops.point_masses([int(np.argsort(-expected)[1])], logits)
    else:
        scores = read(draft, context, 1)
        q = ops.filtered(scores if draft.support is not None else scores[:, :width], sampling)
    observed = np.zeros(width, dtype=np.int64)
    for seed in range(draws):
        if stop():
            raise Stopped
        u = Uniforms(seed, 0).take(3)
        if draft is not None:
            column, q_at = ops.draw(q, u[:1])
            proposal = ops.proposal([(q, column if draft.support is None else draft.support[column], q_at)], draft.support, width)
        accepted, closing, proposed, _, _ = ops.judge_to_host(p, proposal, u[1:], width)
        observed[proposed[0] if accepted else closing] += 1
    return observed, expected


def _decode(side: str, verifier: Model, draft: Model | None, prompt: Prompt, settings: Settings, stop) -> tuple[Round, ...]:
    """The rounds of one answer, by the very loop and drafters that a comparison runs."""
    settings = replace(settings, max_tokens=check_length(len(prompt.ids), settings.max_tokens, verifier.facts.context))
    made = drain(decode(verifier, drafter_for(side, verifier, draft, settings, prompt), prompt.ids, settings, stop, watch=False))
    if made.finish == "stopped":
        raise Stopped
    return made.rounds


def _ids(rounds: Sequence[Round]) -> list[int]:
    return [i for r in rounds for i in r.emitted]


def _dense(ops, distribution, width: int) -> np.ndarray:
    row = np.array(ops.to_host(distribution.probabilities), dtype=float)[0]
    if distribution.ids is None:
        return row
    full = np.zeros(width)
    full[np.array(ops.to_host(distribution.ids))[0].astype(int)] = row
    return full


def _largest(model: Model) -> float:
    return LARGEST_ROUNDING[model.facts.dtype]


# ----------------------------------------------------------------------------------------------------- keeping


def pair_key(verifier: ModelFacts, draft: ModelFacts | None) -> str:
    """Stands for a pair of weights as they were used: 16 hex digits."""
    parts = [[f.revision or f.path, f.dtype, f.device, f.backend] if f else None for f in (verifier, draft)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def last(key: str) -> Certificate | None:
    """The newest certificate of a pair, or None; a damaged file counts as none."""
    try:
        data = json.loads((home() / "certificates" / f"{key}.json").read_text(encoding="utf-8"))
        known = {k: v for k, v in data.items() if k not in ("passed", "checks")}
        return Certificate(**known, checks=tuple(Check(**c) for c in data["checks"]))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def to_data(certificate: Certificate) -> dict:
    return {**plain_data(certificate), "passed": certificate.passed}


def _save(certificate: Certificate) -> None:
    content = json.dumps(to_data(certificate), ensure_ascii=False, allow_nan=False)
    write_atomic(folder("certificates") / f"{certificate.key}.json", content)
