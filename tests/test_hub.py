"""Models of the hub: the local cache first, and one sentence whatever the network or the hub does."""

from __future__ import annotations

import time

import pytest

from engine.errors import RequestError
from engine.models import hub, registry, source
from tests.folders import cache, in_cache, refused, tiny  # noqa: F401


def test_a_hub_id_without_a_network_is_one_sentence_within_five_seconds(cache, monkeypatch):
    import socket

    def nobody(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    assert "the hub does not answer" in (said := refused("nikt/nic")) and "nikt/nic" in said


def test_a_name_server_that_never_answers_is_given_up_on(cache, monkeypatch):
    import socket

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(8))
    assert "the hub does not answer" in refused("nikt/nic")


@pytest.mark.parametrize("kind, status, said", [
    ("GatedRepoError", 403, "is gated"), ("RepositoryNotFoundError", 404, "has no model"), ("HfHubHTTPError", 401, "refuses access"),
    ("HfHubHTTPError", 500, "answered with an error (500)"), ("LocalEntryNotFoundError", None, "does not answer"),
    ("OSError", None, "does not answer"), ("ZeroDivisionError", None, "could not be fetched")])
def test_whatever_the_hub_says_no_token_is_repeated(cache, monkeypatch, kind, status, said):
    import builtins

    import huggingface_hub

    secret = "hf_SECRETsecretSECRET"
    error_type = getattr(huggingface_hub.errors, kind, None) or getattr(builtins, kind)

    def deny(*_, **__):
        error = error_type.__new__(error_type)
        Exception.__init__(error, f"403 Forbidden: token {secret} (Bearer {secret}) may not see this")
        error.response = type("Response", (), {"status_code": status})()
        raise error

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", deny)
    message = refused("meta/tajny")
    assert said in message and "meta/tajny" in message
    assert "SECRET" not in message and "Bearer" not in message


def test_a_model_in_the_local_cache_needs_no_network(cache, tiny, monkeypatch):
    snapshot = in_cache(cache, tiny)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("asked the network"))
    found = source.resolve("org/maly")
    assert found.folder == snapshot.resolve()
    assert (found.revision, found.title) == ("a" * 40, "maly")


def test_a_half_downloaded_model_is_not_taken_for_a_whole_one(cache, tiny):
    (in_cache(cache, tiny) / "model.safetensors").unlink()
    assert hub.cached("org/maly") is None
    entry = {e.name: e for e in registry.listing()}["org/maly"]
    assert not entry.available and "not on this machine yet" in entry.why


def test_a_damaged_local_copy_is_named_when_the_hub_does_not_answer(cache, tiny, monkeypatch):
    file = in_cache(cache, tiny) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])

    def nobody(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", nobody)
    assert "local copy of org/maly cannot be used" in (said := refused("org/maly")) and "damaged" in said


def test_a_hub_model_without_safetensors_is_refused_before_a_download(cache, monkeypatch):
    files = [type("File", (), {"rfilename": n, "size": 1})() for n in ("config.json", "pytorch_model.bin", "x/model.safetensors")]
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: type("Info", (), {"siblings": files})())
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **k: 1 / 0 if not k.get("local_files_only") else 1 / 0)
    assert "no safetensors" in refused("org/stary")


def test_facts_of_a_model_that_is_not_here_ask_no_network(cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: pytest.fail("asked the network"))
    with pytest.raises(RequestError, match="not on this machine yet"):
        source.config("org/duzy")
