"""The bundled Polish models: what ships, how they read and write Polish, and that the draft is of use to the verifier."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoTokenizer

from bench import polish_models as bench
from engine.models import bundled, registry, weights
from engine.prompt_sets.ready import builtin

NAMES = ("polish-verifier", "polish-draft", "polish-draft-general")
MEGABYTES = 60  # all three together
TEXT = "Zażółć gęślą jaźń, rzekł Świętopełk.\n„Łódź” – 12,5 km…\tŻÓŁW 🐢  i\u00a0koniec"


@pytest.fixture(scope="module")
def models():
    return {name: registry.load(f"bundled:{name}", dtype="float32") for name in NAMES}


@pytest.fixture(scope="module")
def judged():
    return {name: bench.load(f"bundled:{name}") for name in NAMES}


def test_they_are_small_enough_to_ship():
    files = [f for name in NAMES for f in (bundled.ROOT / "models" / name).iterdir()]
    assert sum(f.stat().st_size for f in files) <= MEGABYTES * 1_000_000
    assert all((bundled.ROOT / "models" / name / "README.md").read_text("utf-8").startswith("---\nlicense:") for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_they_are_ordinary_llama_checkpoints(name):
    folder = bundled.ready(bundled.entry(name))
    contents = weights.check(folder)
    config = contents.config
    assert config["architectures"] == ["LlamaForCausalLM"] and contents.stored == "float16"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]  # each engine reads another of the two
    assert config["eos_token_id"] == json.loads((folder / "generation_config.json").read_text())["eos_token_id"]


def test_they_load_and_know_their_end(models):
    for name, model in models.items():
        vocabulary = model.vocabulary
        assert model.ends == (vocabulary.tokenizer.convert_tokens_to_ids("</s>"),)
        assert model.ends[0] in vocabulary.control
        assert model.width == len(vocabulary.tokenizer), name
    assert models["polish-verifier"].width == 32_000
    assert models["polish-draft"].vocabulary.tokenizer.get_vocab() != models["polish-draft-general"].vocabulary.tokenizer.get_vocab()


def test_their_tokenizers_give_polish_text_back(models):
    for model in models.values():
        ids = model.vocabulary.tokenizer.encode(TEXT, add_special_tokens=False)
        assert b"".join(model.vocabulary.bytes_of(i) for i in ids).decode().removeprefix(" ") == TEXT


def test_the_polish_tokenizer_needs_the_fewest_tokens():
    prose = " ".join(p.text for p in builtin("polish").prompts)
    count = {n: len(AutoTokenizer.from_pretrained(bundled.ready(bundled.entry(n))).encode(prose)) for n in NAMES}
    assert count["polish-draft"] < 0.85 * min(count["polish-draft-general"], count["polish-verifier"])


def test_the_verifier_writes_polish(judged):
    v = judged["polish-verifier"]
    wrote = b""
    for prompt in builtin("polish.encyclopaedic").prompts[:3]:
        wrote += bench.text_of(v, bench.greedy(v, [v.bos, *v.tokenizer.encode(" " + prompt.text).ids], 40))
    text = wrote.decode("utf-8", errors="ignore")
    letters = [x for x in text if x.isalpha()]
    assert 0.03 < sum(x in "ąćęłńóśźż" for x in letters) / len(letters) < 0.2
    assert sum(x in "aeiouyąęó" for x in letters) / len(letters) > 0.3


def test_ids_never_seen_are_never_likely(models):
    """Ids without text of their own in training share one row; a hundred steps of the verifier's own choice hold none of them."""
    model = models["polish-verifier"]
    rows = model.network.get_input_embeddings().weight
    _, which, count = torch.unique(rows, dim=0, return_inverse=True, return_counts=True)
    unseen = which == count.argmax()
    assert 15_000 < unseen.sum() < 25_000
    session = model.session()
    ids = model.vocabulary.tokenizer.encode("Dawno temu w małym mieście żył")
    p = session.feed(ids, len(ids)).softmax(-1)
    assert p[:, unseen].sum(-1).max() < 0.2
    assert not unseen[p.argmax(-1)].any()


def test_the_verifier_keeps_much_of_what_the_polish_draft_says(judged):
    """Greedy, k = 2, with context, on the first three prompts of each genre, 64 tokens each: the floor that the bundled pair was made for."""
    v, d = judged["polish-verifier"], judged["polish-draft"]
    found = {"naive": [], "context": []}
    for genre in ("encyclopaedic", "instructions", "questions"):
        for prompt in builtin(f"polish.{genre}").prompts[:3]:
            ids = [v.bos, *v.tokenizer.encode(" " + prompt.text).ids]
            answer = bench.greedy(v, ids, 64)
            for strategy, kept in found.items():
                kept.append(bench.kept(v, d, ids, answer, 2, strategy))
    rate = {s: sum(k.accepted for k in kept) / sum(k.proposed for k in kept) for s, kept in found.items()}
    assert rate["context"] >= 0.45
    assert rate["context"] > rate["naive"]


def test_bits_per_byte_count_every_byte_of_the_file(judged):
    """Against the sum over all tokens from one pass, where one window holds the whole text."""
    v = judged["polish-verifier"]
    text = "Żółw śpi pod dębem, a nad rzeką stoi młyn."
    bits, count = bench.bits_per_byte(v, text)
    ids = [v.bos, *v.tokenizer.encode(" " + text).ids]
    with torch.inference_mode():
        nats = v.net(torch.tensor([ids]), labels=torch.tensor([ids])).loss.item() * (len(ids) - 1)
    assert count == len(ids) - 1
    assert bits == pytest.approx(nats / 0.693147 / len(text.encode()), rel=1e-4)
    halves, _ = bench.bits_per_byte(v, text * 8, window=24)
    assert bits / 3 < halves < bits * 2
