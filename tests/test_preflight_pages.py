"""Each page with a Run button refuses what the models' files rule out at once: nothing waits in the queue, nothing loads."""

from __future__ import annotations

import json

import pytest

import cache
from tests.screens import app, button, engine, healthy, page_html  # noqa: F401
from tests.toys import sentencepiece_like, tiny_llama


@pytest.fixture()
def listed(engine, tmp_path) -> dict[str, str]:  # noqa: F811
    """Folders among the app's own models: two of unequal vocabularies, and an encoder."""
    made = {"words": tiny_llama(tmp_path / "models" / "words"), "pieces": tiny_llama(tmp_path / "models" / "pieces", sentencepiece_like()),
            "bert": tiny_llama(tmp_path / "models" / "bert")}
    config = json.loads((made["bert"] / "config.json").read_text())
    (made["bert"] / "config.json").write_text(json.dumps({**config, "model_type": "bert", "architectures": ["BertForMaskedLM"]}))
    return {name: str(folder) for name, folder in made.items()}


def choose(at, page: str, **chosen: str):
    for name, value in chosen.items():
        at = healthy(next(w for w in at.selectbox if w.key == f"{page}.{name}").set_value(value).run())
    return at


@pytest.mark.parametrize("page, role", [("compare", "verifier"), ("sinks", "model"), ("entropy", "model"), ("polish", "verifier")])
def test_an_encoder_is_refused_at_run(listed, page, role):
    at = app(page)
    if page == "polish":
        at = healthy(next(w for w in at.button_group if w.key == "polish.mode").set_value("Run").run())
    at = choose(at, page, **{role: listed["bert"]})
    at = healthy(button(at, f"{page}.run").click().run())
    assert not cache.worker().jobs() and "is an encoder, which reads in both directions" in page_html(at)


def test_the_pair_check_says_it_already_while_models_are_chosen(listed):
    at = choose(app("compare"), "compare", verifier=listed["words"], draft=listed["pieces"])
    assert "The vocabularies differ in" in page_html(at)
    assert "is an encoder" in page_html(choose(at, "compare", verifier=listed["bert"]))
    at = choose(at, "compare", verifier=listed["words"], draft=listed["words"], dtype="bfloat16")
    assert "In bfloat16 the two greedy answers may part at near ties" in page_html(at)
    assert "near ties" not in page_html(choose(at, "compare", dtype="float32"))
