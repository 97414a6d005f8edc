"""The recipe of the Polish models: the texts as documents, the trained network, and its export as an ordinary Llama."""

from __future__ import annotations

import json
import lzma

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from training import polish_corpus, polish_export, polish_tokenizers, polish_train, polish_written
from training.network import Shape

LINES = [f"Zdanie numer {i} opowiada o żółwiu, który śpi w {i % 7}. źdźble trawy." for i in range(900)]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    glosses = [f"Hasło{i} – przykład numer {i}." for i in range(30)]
    for name, lines in (("freedict_glosses", glosses), ("wesnoth", LINES[:600]), ("manpages", LINES[600:])):
        (folder / f"{name}.txt.xz").write_bytes(lzma.compress("\n".join(lines).encode()))
    return folder


@pytest.fixture(scope="module")
def tokenizer(texts):
    return polish_tokenizers.learned([d.text for d in polish_corpus.documents(texts)])


@pytest.fixture(scope="module")
def cut(texts, tokenizer):
    return polish_corpus.cut(polish_corpus.documents(texts), tokenizer, 0, 1)


def test_documents_hold_every_line_once_and_in_order(texts, monkeypatch):
    monkeypatch.setattr(polish_corpus, "MARKED", 0.0)
    found = polish_corpus.documents(texts)
    assert [line for d in found if d.source == "wesnoth" for line in d.text.split("\n")] == LINES[:600]
    assert [line for d in found if d.source == "manpages" for line in d.text.split("\n")] == LINES[600:]
    assert all(len(d.text) >= polish_corpus.LENGTH for d in found[:-1] if d.source == "wesnoth" and LINES[599] not in d.text)


def test_markdown_adds_marks_and_loses_no_word():
    text = "Ustawienia drukarki\nHypnos – planetoida o numerze 14827.\nWybierz kolejno polecenia z menu i kliknij dwa razy."
    seen = set()
    for seed in range(30):
        out = polish_corpus.marked(text, np.random.default_rng(seed))
        seen |= set("#*") & set(out)
        bare = out.replace(":**", " –").replace("*", "").replace("#", "").replace("1.  ", "")
        for word in text.replace(" –", "").split():
            assert word in bare, (word, out)
    assert seen == set("#*")


def test_held_out_documents_are_never_read(cut):
    cut = polish_corpus.Cut(cut.ids, cut.sources, np.arange(len(cut.ids)) % 3 == 1)
    source = polish_corpus.rows(cut, polish_corpus.SHARES, 64, np.random.default_rng(0))
    read = np.stack([next(source) for _ in range(400)])
    joined = " ".join(map(str, read.flatten()))
    for ids, held in zip(cut.ids, cut.held_out):
        middle = " ".join(map(str, ids[10:34]))  # shorter than a row, so that a document that is read is found in one
        found = middle in joined
        assert not (found and held)
    assert read.shape == (400, 65) and read.max() < 8000


def small(known: int = 50, full: int = 90) -> polish_train.Tied:
    torch.manual_seed(1)
    ids = torch.from_numpy(np.sort(np.random.default_rng(1).permutation(full)[:known]))
    return polish_train.Tied(Shape(vocabulary=known + 1, width=64, layers=2, heads=1, mlp=96, context=256), ids, full)


def full_loss(model, ids, smooth):
    """The loss written out over the whole softmax."""
    learned, rows = ids[:, 1:].flatten() >= 0, model.to_row[torch.where(ids < 0, -1 - ids, ids)]
    h = model.hidden(rows[:, :-1]).flatten(0, 1)
    logp = (F.linear(h, model.embed.weight) + model.bias).log_softmax(-1)[learned]
    return -(1 - smooth) * logp.gather(1, rows[:, 1:].reshape(-1, 1)[learned]).mean() - smooth * logp[:, -1].mean()


def test_the_head_by_parts_has_the_gradient_of_the_whole(monkeypatch):
    monkeypatch.setattr(polish_train, "bf16", lambda: False)
    model, ids = small(), torch.randint(0, 90, (3, 40))
    ids[0, :20] = -1 - ids[0, :20]  # read and not learned
    polish_train.loss_of(model, ids, 0.1).backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    full_loss(model, ids, 0.1).backward()
    for n, p in model.named_parameters():
        torch.testing.assert_close(found[n], p.grad, atol=1e-6, rtol=1e-4, msg=n)


def test_a_drawn_softmax_is_right_on_average(monkeypatch):
    monkeypatch.setattr(polish_train, "bf16", lambda: False)
    monkeypatch.setattr(polish_train, "DRAWN", 12)
    model = small()
    ids = model.known[torch.randint(0, 8, (2, 30))]
    always = torch.zeros(51, dtype=torch.bool)
    always[:10] = always[-1] = True
    with torch.no_grad():
        drawn = [polish_train.loss_of(model, ids, 0.0, always).item() for _ in range(300)]
        assert np.std(drawn) > 1e-4  # it does draw
        assert np.mean(drawn) == pytest.approx(full_loss(model, ids, 0.0).item(), abs=0.02)


@torch.no_grad()
def test_the_writer_writes_what_the_network_says_without_a_cache(monkeypatch):
    monkeypatch.setattr(polish_written, "bf16", lambda: False)
    model, start = small(), torch.randint(0, 50, (3, 5))
    for layer in model.layers:  # so that the context says more than the last token
        layer.o.weight.mul_(6), layer.down.weight.mul_(6)
    wrote = polish_written.Writer(model, 3, 20).write(start, 12)
    want = start
    for _ in range(12):
        logits = F.linear(model.hidden(want)[:, -1], model.embed.weight)[:, :-1]
        want = torch.cat((want, logits.argmax(-1, keepdim=True)), 1)
    assert wrote.tolist() == want.tolist()
    assert len(set(wrote[:, 5:].flatten().tolist())) > 3


def test_of_a_written_text_only_what_was_written_is_learned(tmp_path, tokenizer):
    pairs = [["Żółw śpi w", " źdźble trawy.\nZdanie"], ["", "Zdanie numer"]]
    (tmp_path / "written.txt.xz").write_bytes(lzma.compress("\n".join(json.dumps(p) for p in pairs).encode()))
    first, second = polish_train.written_cut(tmp_path / "written.txt.xz", tokenizer, 0, 1).ids
    learned = [i for i in first if i >= 0]
    assert tokenizer.decode(learned) == pairs[0][1]
    assert [(-1 - i if i < 0 else i) for i in first.tolist()] == [0, *tokenizer.encode("".join(pairs[0]), add_special_tokens=False).ids]
    assert second[0] == -1 and (second[1:] >= 0).all()


def test_beginnings_come_from_the_texts_and_never_from_what_is_held_out(texts):
    held = {line for d in polish_corpus.documents(texts) if d.held_out for line in d.text.split("\n")}
    assert held
    source = polish_written.beginnings(texts, np.random.default_rng(0))
    found = [next(source) for _ in range(300)]
    assert any(f.startswith("Zdanie numer") for f in found)
    numbers = {line.split()[2] for line in held} - {line.split()[2] for d in polish_corpus.documents(texts) if not d.held_out
                                                    for line in d.text.split("\n") if line.startswith("Zdanie")}
    assert numbers and not any(f.split()[2] in numbers for f in found if f.startswith("Zdanie numer") and len(f.split()) > 2)


def test_the_exported_folder_is_the_model_that_was_trained(tmp_path, texts, tokenizer, cut, monkeypatch):
    """Same probabilities over the full vocabulary: ids that never occurred share one row, counted as often as there are such ids."""
    monkeypatch.setattr(polish_train, "bf16", lambda: False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    common = ["--texts", str(texts), "--tokenizer", str(tmp_path / "tokenizer.json"), "--out", str(tmp_path / "run"), "--minutes", "0.02",
              "--width", "64", "--layers", "2", "--mlp", "96", "--length", "32", "--rows", "8"]
    monkeypatch.setattr("sys.argv", ["polish_train", *common])
    polish_train.main()
    monkeypatch.setattr("sys.argv", ["polish_export", "--checkpoint", str(tmp_path / "run" / "checkpoint.pt"),
                                     "--tokenizer", str(tmp_path / "tokenizer.json"), "--out", str(tmp_path / "model")])
    polish_export.main()
    state = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    known = state["model"]["known"]
    trained = polish_train.Tied(Shape(**state["shape"]), known, tokenizer.get_vocab_size())
    trained.load_state_dict(state["model"])
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    ids = torch.from_numpy(cut.ids[0][:40]).long()[None]
    with torch.no_grad():
        want = (F.linear(trained.hidden(trained.to_row[ids]), trained.embed.weight) + trained.bias).log_softmax(-1)[0]
        got = loaded(ids).logits.log_softmax(-1)[0]
    torch.testing.assert_close(got[:, known], want[:, :-1], atol=0.02, rtol=0.02)  # float16 weights
    unknown = torch.ones(got.shape[1], dtype=torch.bool)
    unknown[known] = False
    assert unknown.any()
    torch.testing.assert_close(got[:, unknown].logsumexp(-1), want[:, -1], atol=0.02, rtol=0.02)
    read = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert read.encode("Żółw śpi.") == Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode("Żółw śpi.").ids
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10_000.0
