"""Read with Sinks: a finished answer of Compare, Entropy or Polish, read after its prompt as the ids stand."""

from __future__ import annotations

import csv
import dataclasses
import io
import json

import numpy as np
import pytest

import cache
from cache.importing import run_from_bytes
from engine.__main__ import main
from engine.analysis import answers
from engine.attention.run import run as analysis
from engine.attention.view import rows, view
from engine.errors import RequestError
from engine.prompts import build
from engine.request import Done, SinksRequest
from engine.run_files import write
from engine.trace import EntropyItem, EntropyRun, Generation, Prompt, from_json, to_json
from tests import toys
from tests.networks import model as network_model, network
from tests.sample import sample_run
from tests.sample_sinks import sample_item, sample_sinks
from tests.sample_uag import sample_uag
from tests.screens import app, button, engine, finished as finished_job, healthy, page_html  # noqa: F401
from ui.sinks import controls
from ui.sinks.card import caption, card_html
from ui.sinks.takeaway import takeaway

CHAT = toys.vocabulary(toys.byte_level(toys.CHATML), "Tiny")
ANSWER = tuple(CHAT.encode("kot"))


@pytest.fixture(scope="module")
def small():
    return network_model(network("Llama", 0, vocab_size=len(CHAT.tokenizer)), vocabulary=CHAT, context=128)


def finished(text: str = "Ala ma kota.", answer: tuple[int, ...] = ANSWER, vocabulary=CHAT, **changes) -> EntropyRun:
    """A run of Entropy with one answer, in the ids of `vocabulary`."""
    made, prompt = sample_run(), build(vocabulary, text)
    used = {*prompt.ids, *answer}
    facts = dataclasses.replace(made.models["verifier"], name="tiny", title="Tiny")
    run = EntropyRun("20261201-120000-aaaaaa", "2026-12-01T12:00:00+00:00",
                     (EntropyItem(prompt, answer=Generation("plain", answer, vocabulary.text_of(answer))),), made.settings, {"model": facts},
                     made.machine, tokens={i: vocabulary.bytes_of(i).hex() for i in used})
    return dataclasses.replace(run, **changes)


def asked_of(run, side: str | None = None, model: str = "tiny", **changes) -> SinksRequest:
    return dataclasses.replace(SinksRequest(tuple(answers.asked(run, a) for a in answers.of_side(run, side)), model), **changes)


def read(model, request):
    return list(analysis(request, lambda *_: model))[-1].run


def test_prompt_and_answer_are_read_as_the_ids_stand(small):
    """The answer's letters one by one, where the tokenizer itself would write fewer tokens: nothing is tokenised anew."""
    letters = tuple(i for c in "Ala ma kota." for i in CHAT.encode(c))
    run = finished(answer=letters[::-1])
    item = read(small, asked_of(run)).items[0]
    prompt = run.items[0].prompt.ids
    assert item.prompt.ids == (*prompt, *letters[::-1]) and item.answer_start == len(prompt)
    assert item.source == "answer of run 20261201-120000-aaaaaa, verifier only" and item.prompt.text == "Ala ma kota."
    whole = small.attention(item.prompt.ids)
    assert np.array_equal(item.sums.received, whole.received)
    v = view(item)
    segments = [row["segment"] for row in rows(v, {})]
    assert segments[len(prompt):] == ["answer"] * len(letters) and "answer" not in segments[:len(prompt)]
    assert [s == "template" for s in segments[:len(prompt)]] == list(item.structural[:len(prompt)]) and "prompt" in segments
    assert v.sentence.startswith("Context health of prompt and answer")


def test_a_reading_of_an_answer_survives_storing_and_old_runs_have_none(small):
    result = read(small, asked_of(finished()))
    again = from_json(to_json(result, arrays=True)).items[0]
    assert (again.answer_start, again.source) == (result.items[0].answer_start, result.items[0].source)
    data = json.loads(to_json(sample_sinks(), arrays=True))
    for item in data["items"]:
        del item["answer_start"], item["source"]
    old = from_json(json.dumps(data))
    assert old.items[0].answer_start is None and {r["segment"] for r in rows(view(old.items[0]), {})} == {"template", "prompt"}


@pytest.mark.parametrize("start", [-1, 10**9])
def test_an_imported_reading_whose_answer_begins_nowhere_is_refused(start):
    data = json.loads(to_json(sample_sinks(), arrays=True))
    data["items"][0]["answer_start"] = start
    with pytest.raises(RequestError, match="answer_start"):
        run_from_bytes(json.dumps(data).encode())
    data["items"][0]["answer_start"] = 60
    assert run_from_bytes(json.dumps(data).encode()).items[0].answer_start == 60


def test_every_kind_of_run_offers_its_answers_by_side():
    compare, uag = sample_run(), sample_uag(prompts=2, ks=(2,))
    assert [a.key for a in answers.readable(compare)] == ["plain", "speculative"]
    assert answers.of_side(compare, "speculative")[0].generation is compare.speculative
    assert [a.generation for a in answers.of_side(uag, "context-2")] == [i.results[2].answer for i in uag.items]
    assert len(answers.of_side(uag, None)) == 2 and answers.of_side(uag, None)[0].key == "plain"
    asked = answers.asked(compare, answers.of_side(compare, "speculative")[0])
    assert asked.written.prompt.ids == compare.prompt.ids and asked.written.ids == compare.speculative.ids
    assert dict(asked.written.tokens) == {i: compare.tokens[i] for i in {*compare.prompt.ids, *compare.speculative.ids}}


@pytest.mark.parametrize("run, side, words", [
    (sample_sinks(), None, "is itself a reading with Sinks"),
    (dataclasses.replace(sample_run(), plain=None, speculative=None), None, "holds no answer"),
    (dataclasses.replace(sample_run(), plain=Generation("plain"), speculative=None, status="stopped"), None, "holds no answer"),
    (sample_run(), "context-2", "has no side “context-2”; it has plain, speculative"),
    (sample_uag(strategies=("tli",), ks=(4,)), "speculative", "it has plain, tli-4")])
def test_a_run_without_such_an_answer_says_so(run, side, words):
    with pytest.raises(RequestError, match=words):
        answers.of_side(run, side)


def test_an_answer_that_was_stopped_is_read_as_far_as_it_goes(small):
    run = finished(status="stopped")
    assert read(small, asked_of(run)).items[0].prompt.ids[-len(ANSWER):] == ANSWER


def test_a_model_with_another_tokenizer_is_refused_in_one_sentence(small):
    other = toys.vocabulary(toys.sentencepiece_like(), "Other")
    run = finished(text="Za", answer=tuple(other.encode("gęś")), vocabulary=other)
    with pytest.raises(RequestError) as e:
        read(small, asked_of(run))
    assert "has another tokenizer than this answer" in str(e.value) and str(e.value).endswith("choose Tiny, which wrote this answer.")
    beyond = finished(answer=(len(CHAT.tokenizer) + 7,), tokens={})
    with pytest.raises(RequestError, match="does not exist"):
        read(small, asked_of(beyond))


def test_another_tokenizer_is_refused_before_any_weights_are_read(tmp_path):
    folder = toys.tiny_llama(tmp_path / "other", toys.chat_toy(None))
    loads = []
    with pytest.raises(RequestError, match="another tokenizer"):
        list(analysis(asked_of(finished(), model=str(folder)), lambda *a: loads.append(a)))
    assert not loads


def test_a_model_without_a_chat_template_or_with_part_of_the_tokens_is_refused():
    net = network("Llama", 0, vocab_size=len(CHAT.tokenizer))
    base = toys.byte_level(toys.CHATML)
    base.chat_template = None
    with pytest.raises(RequestError, match="Base has no chat template, so .* choose Tiny"):
        read(network_model(net, vocabulary=toys.vocabulary(base, "Base")), asked_of(finished()))
    part = network_model(net, vocabulary=CHAT)
    part.support = np.arange(5)
    with pytest.raises(RequestError, match="knows only some of the tokens; choose Tiny"):
        read(part, asked_of(finished()))


def test_prompt_and_answer_longer_than_the_context_are_refused(small):
    run = finished(answer=ANSWER * 60)
    with pytest.raises(RequestError, match=r"too long together: \d+ tokens, limit 128"):
        read(small, asked_of(run))


def test_of_many_answers_one_that_cannot_be_read_stops_none(small):
    one = finished()
    items = (*one.items, dataclasses.replace(one.items[0], answer=Generation("plain", ANSWER * 60, "")), one.items[0])
    result = read(small, asked_of(dataclasses.replace(one, items=items)))
    assert [bool(i.refused) for i in result.items] == [False, True, False] and result.notes == ("1 of 3 prompts could not be read.",)


@pytest.fixture
def shown():
    item = dataclasses.replace(sample_item(90, structural=4), answer_start=60, source="answer of run X, verifier only")
    return sample_sinks(dataclasses.replace(item, structural=tuple(i < 4 for i in range(90))))


def test_card_ribbon_and_files_tell_the_answer_from_the_prompt(shown):
    item, seen = shown.items[0], view(shown.items[0], 2.0)
    html = card_html(shown, item, seen)
    assert html.count(" an\"") + html.count(" an ") >= 30 and "written by the model" in html and ">part</th>" in html
    assert "60 tokens of prompt and 30 of its answer" in html and "answer of run X" in caption(shown, item, seen)
    assert "of prompt and answer" in html and "by the answer" in html
    take = takeaway(shown, 0, seen)
    table = list(csv.DictReader(io.StringIO(take.tables["tokens"](), newline="")))
    assert [r["segment"] for r in table] == ["template"] * 4 + ["prompt"] * 56 + ["answer"] * 30
    assert json.loads(take.json())["scored"][0]["positions"][60]["segment"] == "answer"
    assert "answer: written by the model" in take.svg("ribbon", "dark") and "by the answer" in take.svg("card", "light")
    alone = sample_sinks()
    plain = card_html(alone, alone.items[0], view(alone.items[0]))
    assert "written by the model" not in plain and ">part</th>" not in plain and "by the answer" not in plain


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def at_command_line(capfd, *arguments: str) -> tuple[int, str, str]:
    status = main(["sinks", "--device", "cpu", "--dtype", "float32", *arguments])
    return status, *capfd.readouterr()


def test_the_command_line_reads_the_answer_of_a_stored_run(home, tmp_path, capfd):
    folder = toys.tiny_llama(tmp_path / "tiny", toys.byte_level(toys.CHATML), context=256)
    run = finished()
    run = dataclasses.replace(run, models={"model": dataclasses.replace(run.models["model"], name=str(folder))})
    (home / "runs").mkdir(parents=True)
    write(run, home / "runs" / f"{run.id}.json")
    status, out, _ = at_command_line(capfd, "--run", run.id, "--json", "-")
    data = json.loads(out)
    start = len(run.items[0].prompt.ids)
    assert status == 0 and data["answer_start"] == start and data["source"].startswith(f"answer of run {run.id}")
    assert [p["id"] for p in data["positions"]] == [*run.items[0].prompt.ids, *ANSWER]
    assert {p["segment"] for p in data["positions"][start:]} == {"answer"} and data["models"]["model"]["name"] == str(folder)
    status, out, _ = at_command_line(capfd, "--run", str(home / "runs" / f"{run.id}.json"), "--side", "plain")
    assert status == 0 and f"{start} tokens of prompt, then {len(ANSWER)} of its answer" in out and " answer\n" in out + "\n"


@pytest.mark.parametrize("options, words", [
    (["--run", "20200101-000000-000000"], "No run of that id"), (["--run", "/no/such.json"], "no such file"), (["--run", "a\0b"], "cannot be opened"),
    (["--run", "x" * 400], "cannot be opened"), (["--prompt", "Ala"], "--model"), (["--prompt", "Ala", "--model", "m", "--side", "plain"], "--run"),
    (["--run", "x", "--raw"], "--raw"), (["--run", "x", "--system", "s"], "--system")])
def test_a_wrong_run_is_one_line_and_status_2(home, capfd, options, words):
    status, out, err = at_command_line(capfd, *options)
    assert status == 2 and out == "" and err.count("\n") == 1 and words in err and "Traceback" not in err


def run_button(at, key: str):
    return healthy(button(at, key).click().run())


def opened(at, key: str):
    """The Sinks page that the button leads to."""
    at = run_button(at, key)
    assert "<h1>Sinks</h1>" in page_html(at)
    return healthy(at.switch_page("pages/sinks.py").run())  # the test driver's next pass would be of the page it began with


@pytest.mark.parametrize("page, run, key, side", [
    ("compare", sample_run(), "result.sinks", "verifier only"), ("compare", sample_run(diverge=5), "result.sinks.speculative", "speculative, γ = 4"),
    ("polish", sample_uag(), "polish.result.sinks", "context, k = 2"),
    ("entropy", sample_run(diverge=5), "entropy.result.sinks", "verifier only")])
def test_read_with_sinks_opens_the_page_filled_in(engine, page, run, key, side):  # noqa: F811
    saved = cache.store().save(run)
    at = opened(app(page, run=saved), key)
    html = page_html(at)
    assert f"Answer of run {run.id}, {side}" in html.replace("&#x27;", "'") and "read as they stand" in html
    assert not any(a.key == "sinks.prompt" for a in at.text_area)
    assert next(s for s in at.selectbox if s.key == "sinks.model").value == run.models["verifier"].name
    asked = controls_of(at)
    assert asked.written.prompt.ids and asked.written.ids
    at = run_button(at, "sinks.answer.drop")
    assert "read as they stand" not in page_html(at) and any(a.key == "sinks.prompt" for a in at.text_area)


def controls_of(at):
    return at.session_state[controls.ANSWERS][0]


def test_the_answer_is_kept_though_its_run_is_deleted_and_run_sends_its_ids(engine, monkeypatch):  # noqa: F811
    from ui import jobs

    asked = []

    def task(request):
        def go(control):
            asked.append(request)
            yield Done(sample_sinks(id=""))
        return go

    monkeypatch.setattr(jobs, "task", task)
    run = sample_run()
    at = opened(app("compare", run=cache.store().save(run)), "result.sinks")
    cache.store().delete(run.id)
    at = healthy(button(at, "sinks.run").click().run())
    finished_job(at)
    assert asked[0].prompts[0].written.ids == run.plain.ids and asked[0].model == run.models["verifier"].name and not at.exception


def test_a_run_that_holds_no_token_offers_no_reading(engine):  # noqa: F811
    empty = dataclasses.replace(sample_run(), plain=Generation("plain", finish="stopped"), speculative=None, status="stopped")
    at = app("compare", run=cache.store().save(empty))
    assert not [b for b in at.button if b.key and b.key.endswith(".sinks")]


def test_the_settings_of_a_reading_of_an_answer_are_taken_with_the_answer(engine, shown):  # noqa: F811
    at = app("sinks", run=cache.store().save(shown))
    assert "Settings changed" in page_html(at)
    at = run_button(at, "sinks.takeback")
    written = controls_of(at).written
    assert (*written.prompt.ids, *written.ids) == shown.items[0].prompt.ids and len(written.prompt.ids) == 60
    assert "Settings changed" not in page_html(at)
    request = controls.request_of(shown)
    assert not controls.changes(request, request) and not controls.left(request, shown)


def test_a_typed_prompt_is_no_answer():
    item = sample_item()
    assert controls.request_of(sample_sinks(item)).prompts[0].written is None and isinstance(item.prompt, Prompt)
