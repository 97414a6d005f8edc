"""One analysis of one or many prompts: events, refusals, Stop, and a run that holds all a view needs."""

from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
import pytest
import torch

from engine.attention.run import run
from engine.attention.view import anomalous_rows, learned, rows, structural_rows, view
from engine.errors import RequestError
from engine.prompts import build
from engine.request import Asked, Done, SinksRequest, Stage
from engine.trace import arrays_of, from_json, to_json
from tests import networks, toys
from tests.attentions import item_of, noisy, planted, recency, slowly

CHAT = toys.vocabulary(toys.byte_level(toys.CHATML))


def model(context: int | None = 512, vocabulary=CHAT, seed: int = 0):
    net = networks.network("Llama", seed, vocab_size=len(vocabulary.tokenizer))
    return networks.model(net, context=context, vocabulary=vocabulary)


@pytest.fixture(scope="module")
def small():
    return model()


def analysed(model, *texts, stop=lambda: False, hear=lambda stage: None, **options):
    asked = SinksRequest(tuple(t if isinstance(t, Asked) else Asked(t) for t in texts), "tiny", **options)
    events = list(run(asked, lambda *_: model, stop, hear))
    assert isinstance(events[-1], Done) and all(isinstance(e, Stage) for e in events[:-1])
    return events[-1].run, events[:-1]


def eager(model, ids) -> np.ndarray:
    """(L, H, S, S) by transformers' own eager attention, of a fresh copy of the same random network."""
    net = networks.network("Llama", 0, vocab_size=len(model.vocabulary.tokenizer), attn_implementation="eager")
    with torch.inference_mode():
        out = net(torch.tensor([list(ids)]), output_attentions=True, use_cache=False)
    return torch.stack(out.attentions)[:, 0].double().numpy()


def test_a_run_says_what_an_eager_computation_says(small):
    text = "Zażółć gęślą jaźń, powiedział Jan. " * 3
    result, _ = analysed(small, text)
    item = result.items[0]
    attention = eager(small, item.prompt.ids)
    received, plain, corrected = slowly(attention, item.structural)
    v = view(item, threshold=3.0)
    assert np.allclose(v.scores.attention, received, atol=1e-4)
    for mine, theirs in ((v.scores.z, plain), (v.scores.z_corrected, corrected)):
        assert [np.isnan(m) for m in mine] == [t is None for t in theirs]
        assert np.nanmax(np.abs(mine - np.array([np.nan if t is None else t for t in theirs]))) < 0.01
    one = slowly(attention, item.structural, layers=[1], heads=[0, 2])
    assert np.allclose(view(item, layers=[1], heads=[0, 2]).scores.attention, one[0], atol=1e-4)
    assert item.sums.row_error < 1e-3 and item.seconds > 0 and item.peak_extra_bytes >= 0


def test_every_view_can_be_made_from_the_stored_run_alone(small):
    result, _ = analysed(small, "Ala ma kota. " * 8)
    again = from_json(to_json(result, arrays=True))
    for options in ({}, {"threshold": 1.0, "layers": [0], "heads": [1, 3]}, {"corrected": False}, {"exclude_structural": False}):
        a, b = view(result.items[0], **options), view(again.items[0], **options)
        assert rows(a, result.tokens, result.special) == rows(b, again.tokens, again.special) and a.health == b.health
    assert len(arrays_of(result)) == 3


def test_the_rows_of_a_view_are_strict_json_and_name_their_tokens(small):
    result, _ = analysed(small, "\tJak nazywa się chata?")  # IN-10
    v = view(result.items[0])
    made = rows(v, result.tokens, result.special)
    json.dumps(made, allow_nan=False)
    assert [row["index"] for row in made] == list(range(len(v.ids))) and made[0]["text"] == "⟨im_start⟩"
    assert "→" in [row["text"] for row in made]  # the tab is shown
    assert {row["index"] for row in structural_rows(v, result.tokens)} == set(np.flatnonzero(result.items[0].structural))
    assert all(row["queries"] == len(made) - row["index"] for row in made)
    assert [row["segment"] for row in made] == ["template" if flag else "prompt" for flag in result.items[0].structural]
    short, _ = analysed(small, "Ala", raw=True)
    undefined = rows(view(short.items[0]), short.tokens, short.special)
    json.dumps(undefined, allow_nan=False)
    assert all(row["z_corrected"] is None and row["why"] for row in undefined) and [row["opening"] for row in undefined] == [True, False, False]


def test_anomalous_rows_are_the_sinks_outside_the_template_highest_first():
    item = item_of(planted(planted(noisy(recency(200), 0.2), [50], 0.1), [100], 0.4), [0, 1, 2])
    v = view(item, threshold=5.0)
    assert [row["index"] for row in anomalous_rows(v, {})] == [100, 50]
    assert v.sinks[0] and v.structural[0] and v.sentence == v.health.sentence and 0.1 < v.structural_share < 0.9
    assert not view(item, threshold=1e6).sinks.any()


def test_learned_sinks_stand_apart():
    item = item_of(noisy(recency(30)))
    assert view(item).learned_share is None
    sums = dataclasses.replace(item.sums, received=item.sums.received.repeat(2, axis=0), near=None, windows=(None, None), learned=((0.25,), (0.75,)))
    both = dataclasses.replace(item, sums=sums)
    assert learned(both) == 0.5 and learned(both, layers=[1]) == 0.75 and view(both).learned_share == 0.5


def test_one_refused_prompt_does_not_stop_the_others(small):
    long = "a" * 600
    result, _ = analysed(small, Asked("Ala", "p1", "x"), Asked(long, "p2"), Asked("  ", "NA"), Asked("zły \0 znak", "p4"), Asked("kota", "p5"))
    assert [item.label for item in result.items] == ["p1", "p2", "NA", "p4", "p5"] and result.items[0].category == "x"
    assert [bool(item.refused) for item in result.items] == [False, True, True, True, False] and result.status == "done"
    assert "tokens, limit 512" in result.items[1].refused and "empty" in result.items[2].refused and "NUL" in result.items[3].refused
    assert result.notes == ("3 of 5 prompts could not be read.",)
    assert from_json(to_json(result, arrays=True)).items[2].refused == result.items[2].refused
    for item in result.items:
        if item.refused:
            with pytest.raises(RequestError, match=item.refused[:20].replace("(", r"\(")):
                view(item)


def test_prompts_at_and_over_the_context():
    """IN-08: a prompt that is only read may fill the context; nothing is cut; a million tokens are refused at once."""
    tiny = model(context=64)
    frame = len(build(CHAT, "a").ids) - 1
    texts = ["a" * (n - frame) for n in (60, 64, 65, 1_000_000)]
    start = time.monotonic()
    result, _ = analysed(tiny, *texts)
    assert time.monotonic() - start < 5
    assert [len(item.prompt.ids) for item in result.items] == [60, 64, 0, 0]
    assert result.items[2].refused.startswith("The prompt is too long: 65 tokens, limit 64")
    assert "tokens, limit 64" in result.items[3].refused and len(result.items[3].prompt.text) < 2000


def test_the_only_prompt_refused_is_an_error(small):
    for text, words in (("", "empty"), ("a" * 600, "limit 512"), ("\0", "NUL"), ("\ud800", "surrogate")):
        with pytest.raises(RequestError, match=words):
            analysed(small, text)
    with pytest.raises(RequestError, match="no prompt"):
        analysed(small)
    result, _ = analysed(small, "Ala", "a\ud800")
    assert "surrogate" in result.items[1].refused
    to_json(result).encode()


def test_an_attention_that_cannot_be_captured_ends_the_run_with_the_reason(small, monkeypatch):
    def fails(ids, progress=None):
        raise RequestError("The attention of Tiny cannot be measured: it has none.")

    monkeypatch.setattr(small, "attention", fails)
    with pytest.raises(RequestError, match="cannot be measured: it has none"):
        analysed(small, "Ala", "kota")


def test_a_prompt_that_the_memory_does_not_do_for_is_refused_alone(small, monkeypatch):
    whole = small.attention

    def scarce(ids, progress=lambda share: False):
        if len(ids) > 100:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return whole(ids, progress)

    monkeypatch.setattr(small, "attention", scarce)
    result, _ = analysed(small, "Ala", "a" * 200, "kota")
    assert [bool(item.refused) for item in result.items] == [False, True, False] and "not enough memory" in result.items[1].refused


def test_a_fault_of_ours_is_not_taken_for_a_refusal(small, monkeypatch):
    whole = small.attention

    def broken(ids, progress=lambda share: False):
        if len(ids) > 100:
            raise RuntimeError("shapes do not fit")
        return whole(ids, progress)

    monkeypatch.setattr(small, "attention", broken)
    with pytest.raises(RuntimeError):
        analysed(small, "Ala", "a" * 200)


def test_stop_keeps_the_prompts_read_so_far(small):
    heard = []

    def hear(stage):
        heard.append(stage)

    def stop():
        return bool(heard) and "prompt 3" in heard[-1].text and heard[-1].done > 0.5

    result, _ = analysed(small, *["Ala ma kota. " * 3] * 4, stop=stop, hear=hear)
    assert result.status == "stopped" and len(result.items) == 2 and all(item.sums is not None for item in result.items)


@pytest.mark.parametrize("calls", range(12))
def test_stop_at_any_moment_keeps_what_was_read_or_nothing(small, calls):
    left = [calls]

    def stop():
        left[0] -= 1
        return left[0] < 0

    events = list(run(SinksRequest((Asked("Ala"), Asked("ma"), Asked("kota")), "tiny"), lambda *_: small, stop))
    kept = [event.run for event in events if isinstance(event, Done)]
    assert all(one.status == "stopped" and 0 < len(one.items) < 3 for one in kept)
    assert not kept or calls > 5  # asked earlier, it had read none
    assert kept or calls < 11


def test_progress_never_falls_and_names_what_is_read(small):
    heard = []
    result, events = analysed(small, "Ala ma kota. " * 3, "a" * 600, "kota", hear=heard.append)
    shares = [stage.done for stage in [*events, *heard] if stage.done is not None]
    assert shares and sorted(s.done for s in heard) == [s.done for s in heard] and 0 <= min(shares) and max(shares) <= 1
    assert [e.text for e in events][:3] == ["Loading tiny", "Splitting the prompts into tokens", "Warm-up"]
    assert any("prompt 3 of 3" in e.text for e in events) and result.status == "done"


def test_the_run_gives_the_bytes_of_every_id_and_says_what_was_read_raw():
    base = toys.vocabulary(toys.sentencepiece_like())
    result, _ = analysed(model(vocabulary=base), "Zażółć gęślą jaźń", "Za")
    ids = {i for item in result.items for i in item.prompt.ids}
    assert set(result.tokens) == ids and all(bytes.fromhex(result.tokens[i]) == base.bytes_of(i) for i in ids)
    assert result.special == (1,) and result.items[0].first == "begin-of-text token" and result.items[0].structural[:2] == (True, False)
    assert result.notes == ("Tiny has no chat template: the prompts were read as raw text.",) and result.kind == "sinks"


def test_prompts_read_together_are_those_read_alone(small):
    """AT-07: there is no padding, so position 0 is the first real token and nothing is NaN."""
    together, _ = analysed(small, "Ala", "Ala ma kota.")
    for item, text in zip(together.items, ("Ala", "Ala ma kota.")):
        alone = analysed(small, text)[0].items[0]
        assert item.prompt.ids == alone.prompt.ids and np.array_equal(item.sums.received, alone.sums.received)
        assert np.isfinite(item.sums.received).all()


PARAGRAPHS = {
    "English": ("The lighthouse keeper counted the ships every evening. When the fog came in from the north, he lit the lamp an hour early and rang the "
                "bell, once for every boat he could not see. In the morning he wrote the number in a book with a blue cover, and the book was almost full."),
    "Polish": ("Zażółć gęślą jaźń, powiedział Jan i zamknął okno. Na dworze padał śnieg, a w kominku dogasał ogień. Matka odłożyła książkę, spojrzała na "
               "zegar i westchnęła: znowu nikt nie przyjdzie na kolację, choć stół był nakryty dla sześciu osób, a zupa stygła od godziny."),
    "code": ('def median(values):\n    """The middle of sorted values."""\n    ordered = sorted(values)\n    middle = len(ordered) // 2\n'
             "    if len(ordered) % 2:\n        return ordered[middle]\n    return (ordered[middle - 1] + ordered[middle]) / 2\n\n\n"
             "print(median([3, 1, 4, 1, 5, 9, 2, 6]))\n"),
    "dialogue": ('"Where have you been?" she asked.\n"At the harbour," he said. "The ferry was late again."\n"It is always late."\n'
                 '"Not always. Only when I take it."\nShe laughed, and put the kettle on.'),
    "table": "name,age,city\nAnna,34,Łódź\nPiotr,51,Kraków\nMaria,27,Gdańsk\nJan,45,Poznań\nEwa,39,Wrocław\nTomasz,60,Lublin\n",
    "a token doubled": ("\n\nOnce upon a time there was a king who had three sons. The eldest was strong, the second was clever, and the third was kind. "
                        "One day the king fell ill, and no doctor could help him.")}


@pytest.fixture(scope="module")
def bundled(smollm2_folder):
    from engine.models import registry

    return registry.load("bundled:smollm2-135m", dtype="float32", device="cpu")


@pytest.mark.parametrize("kind", PARAGRAPHS)
def test_raw_and_templated_readings_of_a_paragraph_agree_on_its_health(bundled, kind):
    """The first token takes half of all attention of any raw text; the health is that of the text, not of where it stands."""
    raw, framed = (view(analysed(bundled, PARAGRAPHS[kind], raw=raw)[0].items[0]) for raw in (True, False))
    assert abs(raw.health.value - framed.health.value) < 1, (raw.sentence, framed.sentence)
    assert raw.scores.share[0] > 0.3 and raw.sinks[0] and raw.health.opening == ((0, 1) if kind == "a token doubled" else (0,))
    assert "as the opening sink that any text has" in raw.sentence and "opening" not in framed.sentence
    assert framed.sinks[0] and framed.structural[0] and framed.health.opening == ()


def test_the_bundled_model_agrees_with_its_own_eager_attention(smollm2_folder):
    """Real weights; and what the literature says of them: the first token drains about half of all attention."""
    from transformers import AutoModelForCausalLM

    from engine.models import registry

    loaded = registry.load("bundled:smollm2-135m", dtype="float32", device="cpu")
    result, _ = analysed(loaded, "Zażółć gęślą jaźń. Explain photosynthesis, and say why leaves turn yellow in autumn. " * 2)
    item = result.items[0]
    net = AutoModelForCausalLM.from_pretrained(smollm2_folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.inference_mode():
        out = net(torch.tensor([list(item.prompt.ids)]), output_attentions=True, use_cache=False)
    mean = torch.stack(out.attentions)[:, 0].double().mean((0, 1))[None, None].numpy()
    received, plain, corrected = slowly(mean, item.structural)
    v = view(item)
    assert np.abs(v.scores.attention - received).max() < 1e-5
    for mine, theirs in ((v.scores.z, plain), (v.scores.z_corrected, corrected)):
        theirs = np.array([np.nan if t is None else t for t in theirs])
        assert np.array_equal(np.isnan(mine), np.isnan(theirs)) and np.nanmax(np.abs(mine - theirs)) < 0.01
    assert 0.3 < v.scores.attention[0] < 0.7 and v.sinks[0] and v.structural[0]
