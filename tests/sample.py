"""A synthetic run for tests of everything that only reads a `Run`: same seed, same run, and every figure adds up.

The words are fixed, the luck is seeded. What holds in a recorded run holds here too: emitted tokens are the accepted
proposals and the closing token, a draw accepts exactly when it is below min(1, p/q), `end` is the running sum of the
rounds' times, the first timing is the sum of the rounds, nothing follows an end token.
"""

from __future__ import annotations

import math
import random

from engine.trace import (BONUS, CORRECTION, PLAIN, Generation, Machine, ModelFacts, Prompt, Round, Run, Sampling, Settings,
                          Timing)

ENGLISH = ("Photos|ynthesis| is| the| process| by| which| green| plants|,| algae| and| some| bacteria| turn| light| into|"
           " chemical| energy|.|\n\n|1|.| Light| is| absorbed| by| chlor|oph|yll| in| the| leaves|.|\n|2|.| Water| is| split|"
           " into| oxygen|,| protons| and| electrons|.|\n|3|.| The| energy| is| stored| as| sugar|,| which| feeds| the| plant|.|  |"
           " The| oxygen| leaves| through| small| pores|.|\t|So| light| becomes| food|.")
POLISH = "Za|ż|ół|\u0107| g|\u0119|ś|lą| j|a|ź|ń|.| W| Szcz|eb|rz|esz|ynie| chrz|ąsz|cz| brzmi| w| trz|cinie|."
HOSTILE = ("<script>|alert(1)|</script>|<img src=x onerror=alert(2)>| a<b| i 3 > 2 & koniec| </span>|$5, a obiad $12| __razem__|"
           " `$x$`|\"><svg/onload=1>|' onfocus='x|]]>|-->|&amp;|\\|{}|=1+1|@SUM(A1)")
OTHERS = " in| of| a| leaf| sun| root| very| that| this| because|,|.| carbon| sugar| with".split("|")
EOS, EOS_BYTES = 2, b"<|im_end|>"


def sample_run(seed: int = 0, tokens: int = 64, gamma: int = 4, temperature: float = 0.7, *, hostile: bool = False,
               polish: bool = False, eos: bool = False, repeats: int = 3, drafter: str = "model", acceptance: float = 0.72,
               diverge: int | None = None, speculative: bool = True, status: str = "done", prompt: str | None = None) -> Run:
    """A comparison of `tokens` tokens a side. `acceptance` is the chance that a judged proposal is accepted.

    `diverge`: index of the first token at which the sides differ (None: never). `gamma` 0 or `acceptance` 0 are allowed.
    `polish` puts letters split into single bytes into the text, `hostile` HTML, Markdown, formulas and quotes.
    """
    luck = random.Random(seed)
    words = [w.encode() for w in ENGLISH.split("|")]
    if polish:
        words = [w for piece in POLISH.split("|")
                 for w in ([bytes([b]) for b in piece.encode()] if piece in "żęźń" else [piece.encode()])] + words
    if hostile:
        words = [w.encode() for w in HOSTILE.split("|")] + words
    vocabulary: dict[bytes, int] = {EOS_BYTES: EOS}
    for word in words + [w.encode() for w in OTHERS]:
        vocabulary.setdefault(word, 100 + 7 * len(vocabulary))
    ids = {i: b for b, i in vocabulary.items()}
    everything = [i for i in ids if i != EOS]

    target = [vocabulary[words[i % len(words)]] for i in range(tokens)]
    if eos and tokens:
        target[-1] = EOS
    other = list(target)
    if diverge is not None:
        for i in range(diverge, tokens - (1 if eos else 0)):
            if i == diverge or luck.random() < 0.15:
                other[i] = luck.choice([t for t in everything if t != target[i]])
    finish = "stopped" if status == "stopped" else "eos" if eos and tokens else "length"

    plain_rounds, clock = [], 0.0
    for token in target:
        seconds = 0.030 * luck.uniform(0.95, 1.08)
        clock += seconds + 0.0006
        plain_rounds.append(Round(emitted=(token,), verify_seconds=seconds, end=clock))
    plain = _generation("plain", target, plain_rounds, ids, everything, luck, finish, repeats)
    answer = None
    if speculative:
        rounds = _rounds(other, gamma, temperature, drafter, acceptance, everything, luck)
        answer = _generation("speculative", other, rounds, ids, everything, luck, finish, repeats)
    text = prompt if prompt is not None else "Explain photosynthesis step by step." if not hostile else HOSTILE.replace("|", "")
    prompt_ids = tuple(luck.choice(everything) for _ in range(23))
    models = {"verifier": _facts("SmolLM2-135M-Instruct", "bundled:smollm2-135m", 30, 576, 134_515_008, 134_515_008, 49_152)}
    if drafter == "model":
        models["draft"] = _facts("smollm2-draft", "bundled:smollm2-draft", 3, 320, 9_400_000, 6_600_000, 8_192)
    return Run(
        id=f"20261201-120000-{seed:04x}", created="2026-12-01T12:00:00Z", prompt=Prompt(text, prompt_ids),
        settings=Settings(gamma=gamma, drafter=drafter, max_tokens=tokens, repeats=repeats,
                          sampling=Sampling(temperature, top_p=1.0 if temperature == 0 else 0.9, seed=seed)),
        models=models,
        machine=Machine("Linux 6.1", "2-core x86-64", 2, 16 * 2**30, "3.11.2", {"torch": "2.13.0", "transformers": "5.24.0"}),
        plain=plain, speculative=answer, tokens={i: b.hex() for i, b in ids.items()}, special=(EOS,), status=status)


def _rounds(target, gamma, temperature, drafter, acceptance, everything, luck) -> list[Round]:
    rounds, at, clock = [], 0, 0.0
    while at < len(target):
        wanted = min(gamma, len(target) - at - 1)
        proposed, p, q, draw = [], [], [], []
        accepted, rejected = 0, False
        for i in range(wanted):
            good = not rejected and luck.random() < max(0.0, acceptance - 0.06 * i * (acceptance < 1))
            token = target[at + i] if good or rejected else luck.choice([t for t in everything if t != target[at + i]])
            proposed.append(token)
            if temperature == 0:
                p.append(1.0 if good else 0.0)
                q.append(1.0)
                draw.append(None)
            else:
                chance_q = luck.uniform(0.2, 0.95)
                chance_p = luck.uniform(0.5, 0.99) * (1 if good else 0.4 * chance_q)
                bar = min(1.0, chance_p / chance_q)
                p.append(chance_p)
                q.append(chance_q)
                draw.append(None if rejected else luck.uniform(0, bar * 0.999) if good else luck.uniform(bar, 0.9999))
            accepted += good
            rejected = rejected or not good
            if good and token == EOS:
                break
        ended = accepted and proposed[accepted - 1] == EOS
        emitted = tuple(proposed[:accepted]) if ended else tuple(target[at:at + accepted + 1])
        closing = None if ended else CORRECTION if rejected else BONUS if wanted else PLAIN
        draft = 0.0 if drafter == "lookup" else 0.0031 * luck.uniform(0.95, 1.1) * len(proposed)
        verify = 0.030 * (1 + 0.025 * len(proposed)) * luck.uniform(0.97, 1.05)
        clock += draft + verify + 0.0009
        count = len(proposed)
        entropy = tuple(luck.uniform(0.1, 2.6) * (1.8 if i >= accepted else 1) for i in range(count))
        pointmass = drafter == "lookup"
        rounds.append(Round(
            proposed=tuple(proposed), accepted=accepted, emitted=emitted, closing=closing,
            q=(None,) * count if pointmass else tuple(q), p=tuple(p), draw=tuple(draw),
            draft_entropy=(None,) * count if pointmass else entropy,
            draft_normalised=(None,) * count if pointmass else tuple(e / math.log2(8192) for e in entropy),
            draft_seconds=draft, verify_seconds=verify, end=clock,
            note=None if count else "one token was left to write"))
        at += len(emitted)
    return rounds


def _generation(mode, ids, rounds, vocabulary, everything, luck, finish, repeats) -> Generation:
    entropy, top, probability = [], [], []
    for token in ids:
        others = luck.sample([t for t in everything if t != token], 4)
        best = luck.uniform(0.3, 0.97)
        rest = sorted((luck.random() for _ in range(5)), reverse=True)
        scale = (1 - best) * 0.9 / sum(rest)
        chances = [best] + [min(r * scale, best) for r in rest[:4]]
        top.append(tuple(zip([token, *others], chances)))
        probability.append(best)
        entropy.append(-sum(c * math.log2(c) for c in chances))
    decode = rounds[-1].end if rounds else 0.0
    verify = sum(r.verify_seconds for r in rounds)
    draft = sum(r.draft_seconds for r in rounds)
    stretch = [1.0] + [luck.uniform(0.97, 1.05) for _ in range(repeats - 1)]
    timings = tuple(Timing(0.21 * s, decode * s, verify * s, draft * s, len(ids), len(rounds)) for s in stretch)
    raw = b"".join(vocabulary[i] for i in ids if i != EOS)
    return Generation(mode, tuple(ids), raw.decode("utf-8", "ignore"), finish, tuple(entropy), tuple(top), tuple(probability),
                      tuple(rounds), timings)


def _facts(title, name, layers, width, parameters, through, vocabulary) -> ModelFacts:
    return ModelFacts(
        name=name, title=title, path="/models/" + title, revision="b179c9523d0e" if layers == 30 else "3f2ca81b77d0",
        architecture="LlamaForCausalLM", layers=layers, width=width, parameters=parameters, flops_per_token=2 * through,
        vocabulary=vocabulary, context=8192, tied_head=True, weights="Q4_1 → bfloat16" if layers == 30 else "bfloat16",
        backend="torch", backend_version="2.13.0", device="cpu", asked_device="auto", dtype="bfloat16", asked_dtype="auto",
        bytes=2 * parameters, load_seconds=0.8)
