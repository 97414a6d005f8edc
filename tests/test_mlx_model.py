"""The MLX adapter: it reads every config as torch does, its caches roll back or it says so, and decoding loses nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm import utils as mlx_lm
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import ArraysCache, KVCache, QuantizedKVCache, RotatingKVCache, make_prompt_cache

from engine import pair
from engine.errors import RequestError
from engine.models import mlx_config, mlx_model, mlx_session, registry
from engine.trace import Sampling, Settings
from tests.decoded import decoded
from tests.mlx_folders import KINDS, SLIDING, WIDTH, load, save
from tests.scripted import letters
from tests.toys import tiny_llama

SAMPLINGS = (Sampling(), Sampling(1.0, seed=1), Sampling(0.8, top_p=0.9, top_k=20, min_p=0.02, repetition_penalty=1.2))


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.random.default_rng(seed).integers(0, WIDTH, length))


def scores(model, ids, last=None) -> np.ndarray:
    return np.array(model.ops.to_host(model.session().feed(ids, last or len(ids))))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """folders(name, seed): the folder of one kind, made once."""
    made, root = {}, tmp_path_factory.mktemp("kinds")

    def folder(name, seed=0):
        if (name, seed) not in made:
            kind, config = KINDS[name]
            made[name, seed] = save(root / f"{len(made)}", kind, seed, **config)
        return made[name, seed]

    return folder


@pytest.fixture(scope="module")
def plain(folders):
    """(verifier, draft) of the plainest kind."""
    return load(folders("tied")), load(folders("tied", 1))


# ------------------------------------------------------------------------------------------------------- same answers


@pytest.mark.parametrize("name", KINDS)
def test_a_config_is_read_as_torch_reads_it(folders, name):
    """Longer than any window, in one piece and token by token; and the same facts, end tokens and defaults."""
    ours, theirs = load(folders(name)), load(folders(name), "torch")
    ids = prompt_of(1, 24)
    want = scores(theirs, ids)
    session = ours.session()
    assert np.abs(scores(ours, ids) - want).max() < 1e-3
    assert np.abs(np.concatenate([np.array(session.feed((i,), 1)) for i in ids]) - want).max() < 1e-3
    assert want.std() > 0.01 and np.abs(np.diff(want, axis=0)).max() > 0.05  # scores that could differ
    same = ("architecture", "layers", "width", "parameters", "flops_per_token", "vocabulary", "context", "tied_head", "bytes", "dtype")
    assert {f: getattr(ours.facts, f) for f in same} == {f: getattr(theirs.facts, f) for f in same}
    assert "MLX held at most 0.00 GB at once since" in ours.facts.notes[-1]
    assert (ours.ends, ours.defaults, ours.width, ours.can_rewind) == (theirs.ends, theirs.defaults, theirs.width, theirs.can_rewind)


@pytest.mark.parametrize("name", ["untied, which is a default", *SLIDING])
def test_speculation_changes_no_id_and_a_model_drafting_for_itself_is_always_accepted(folders, name):
    """SD-06: the text is longer than any window; plain, with a draft, with itself, greedy and sampling; and torch agrees."""
    verifier, draft = load(folders(name)), load(folders(name, 1))
    assert verifier.can_rewind
    prompt = prompt_of(5, 6)
    alone = decoded(verifier, None, prompt, Settings(max_tokens=24))
    assert alone.ids == decoded(load(folders(name), "torch"), None, prompt, Settings(max_tokens=24)).ids
    for gamma in (1, 2, 3):
        assert decoded(verifier, draft, prompt, Settings(gamma=gamma, max_tokens=24)).ids == alone.ids
    for s in SAMPLINGS:
        made = decoded(verifier, verifier, prompt, Settings(gamma=3, max_tokens=16, sampling=s))
        assert all(r.accepted == len(r.proposed) for r in made.rounds) and len(made.rounds) == 4


def test_sampled_text_is_torchs_with_the_same_seed(folders, plain):
    """One uniform number picks one token, on any backend."""
    theirs = [load(folders("tied", seed), "torch") for seed in (0, 1)]
    for s in SAMPLINGS[1:]:
        settings = Settings(gamma=3, max_tokens=20, sampling=s)
        ours, other = decoded(*plain, prompt_of(2, 5), settings), decoded(*theirs, prompt_of(2, 5), settings)
        assert (ours.ids, [r.accepted for r in ours.rounds]) == (other.ids, [r.accepted for r in other.rounds])
        assert np.allclose(ours.entropy, other.entropy, atol=1e-3)


def test_end_tokens_and_sampling_defaults_are_those_of_all_three_files(folders, tmp_path):
    folder = save(tmp_path / "m", "Llama", eos_token_id=7)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 7], "temperature": 0.6, "top_k": 20, "top_p": 1.0}))
    ours, theirs = load(folder), load(folder, "torch")
    assert ours.ends == theirs.ends == (3, 7) and ours.defaults == theirs.defaults == {"temperature": 0.6, "top_k": 20}


# ------------------------------------------------------------------------------------------------------------- caches


def test_what_was_rewound_leaves_no_trace(plain):
    """Past the 256 positions by which mlx-lm's caches grow."""
    model, text = plain[0], []
    session = model.session()
    for step, (back, ids) in enumerate([(0, prompt_of(3, 250)), (2, (7, 8, 9, 1)), (3, (4,)), (1, (2,) * 9), (13, (6, 5)), (1, (9,) * 30)]):
        session.rewind(back)
        text = text[: len(text) - back] + list(ids)
        found = session.feed(mx.array(ids) if step % 2 else ids, len(ids))
        assert session.length == len(text)
        assert np.abs(np.array(found) - scores(model, text)[len(text) - len(ids) :]).max() < 1e-4


def test_a_long_prompt_is_read_in_parts_and_scores_the_same(plain, monkeypatch):
    ids = prompt_of(4, 60)
    want = scores(plain[0], ids)
    monkeypatch.setattr(mlx_session, "PREFILL", 7)
    assert np.abs(scores(plain[0], ids, 2) - want[-2:]).max() < 1e-4
    session = plain[0].session()
    assert session.feed(ids[:-1], 0) is None and session.length == 59
    assert np.abs(np.array(session.feed(ids[-1:], 1)) - want[-1:]).max() < 1e-4


@pytest.mark.parametrize("name", SLIDING)
def test_a_rotating_cache_is_replaced_and_the_mask_still_limits(folders, name):
    model = load(folders(name))
    assert any(type(c) is RotatingKVCache for c in make_prompt_cache(model.network))
    kinds = [type(c) for c in mlx_session.caches(model.network)]
    assert kinds == [mlx_session.WindowCache, KVCache]
    held = mlx_session.WindowCache(8)
    held.update_and_fetch(mx.zeros((1, 1, 10, 4)), mx.zeros((1, 1, 10, 4)))
    for said, seen in ((None, 8), (3, 3)):  # the network's own file may say how far, or leave it to the cache
        mask = np.array(held.make_mask(2, window_size=said))
        assert mask.shape == (2, 12) and mask.sum(1).tolist() == [seen, seen] and mask[1, -seen:].all()


def test_speculation_over_a_rotating_cache_is_mlx_lms_own_plain_text(tmp_path):
    """SD-06 as reported: a window of 16, a prompt of 5, 30 tokens, draft lengths 1 to 3. mlx-lm's own cache can only go on."""
    verifier, draft = (load(tiny_llama(tmp_path / str(seed), letters(WIDTH).tokenizer, seed=seed)) for seed in (0, 1))
    rotating = [RotatingKVCache(16), RotatingKVCache(16)]
    steps = generate_step(mx.array([1, 2, 3, 4, 5]), verifier.network, prompt_cache=rotating, max_tokens=30)
    want = tuple(int(token) for token, _ in steps)
    assert not any(c.is_trimmable() for c in rotating)
    verifier.network.make_cache = lambda: [RotatingKVCache(16), RotatingKVCache(16)]
    verifier.ends = ()
    for gamma in (1, 2, 3):
        assert decoded(verifier, draft, (1, 2, 3, 4, 5), Settings(gamma=gamma, max_tokens=30)).ids == want
    assert decoded(verifier, None, (1, 2, 3, 4, 5), Settings(max_tokens=30)).ids == want


@pytest.mark.parametrize("cache, can", [(KVCache, True), (lambda: RotatingKVCache(16), True), (lambda: RotatingKVCache(16, keep=4), False),
                                        (lambda: ArraysCache(2), False), (QuantizedKVCache, False)])
def test_a_model_whose_cache_cannot_be_rolled_back_is_refused_before_a_run(plain, monkeypatch, cache, can):
    """SD-06: rotating caches that keep some first tokens, recurrent states, quantised caches."""
    monkeypatch.setattr(mlx_session.mlx_cache, "make_prompt_cache", lambda network: [cache(), KVCache()])
    monkeypatch.setattr(mlx_model, "width_of", lambda network: WIDTH)
    made = mlx_model.MlxModel(plain[0].network, plain[0].facts, plain[0].vocabulary, (), {})
    assert made.can_rewind is can
    if not can:
        with pytest.raises(RequestError, match="cannot be rolled back"):
            pair.check_models(made, plain[1])
        session = made.session()
        session._inner.length = 3
        with pytest.raises(RequestError, match="cannot take a token back"):
            session.rewind(1)


def test_a_trim_that_trims_nothing_is_an_error(plain):
    session = plain[0].session()
    session.feed((1, 2, 3), 0)
    session._inner.cache[1].trim = lambda count: 0  # what mlx-lm's caches do that cannot be trimmed
    with pytest.raises(RequestError, match="could not take the last tokens back"):
        session.rewind(1)


def test_a_text_past_the_context_is_refused_in_one_sentence(tmp_path):
    session = load(save(tmp_path / "m", "Llama", max_position_embeddings=8)).session()
    session.feed((1,) * 8, 0)
    with pytest.raises(RequestError, match=r"^m reads at most 8 tokens; 9 were asked for\.$"):
        session.feed((1,), 1)
    with pytest.raises(ValueError):
        session.rewind(9)


# ------------------------------------------------------------------------------------------- what mlx-lm cannot be told


@pytest.mark.parametrize("kind, config", [("Mistral", {}), ("Qwen2", dict(use_sliding_window=True, max_window_layers=0)), ("Gemma2", {})])
def test_a_network_whose_window_mlx_lm_ignores_is_read_up_to_it_and_says_so(tmp_path, kind, config):
    model = load(save(tmp_path / "okno", kind, sliding_window=8, **config))
    assert model.facts.context == 8
    assert model.facts.notes[:-1] == (f"mlx-lm {mlx_model.mlx_lm_version()} reads okno without its sliding window of 8, so it is read up to there.",)
    ids = prompt_of(1, 8)
    assert np.abs(scores(model, ids) - scores(load(tmp_path / "okno", "torch"), ids)).max() < 1e-3


@pytest.mark.parametrize("kind, config, said", [
    ("Llama", dict(hidden_act="gelu"), "asks for gelu"),
    ("Gemma2", dict(attn_logit_softcapping=None), "could not be loaded by mlx-lm"),
    ("Gemma3Text", dict(sliding_window=8, num_hidden_layers=3, layer_types=["sliding_attention", "full_attention", "full_attention"]),
     "an order that mlx-lm does not know"),
    ("Bloom", dict(n_head=4), "not supported"),
])
def test_what_mlx_lm_has_no_words_for_is_refused_in_one_sentence(tmp_path, kind, config, said):
    folder = save(tmp_path / "m", kind, **config)
    with pytest.raises(RequestError) as e:
        load(folder)
    assert said in str(e.value) and str(e.value).endswith(".") and "\n" not in str(e.value) and len(str(e.value)) < 400


def test_a_rope_base_that_stays_untold_is_refused(tmp_path, monkeypatch):
    folder = save(tmp_path / "m", "Llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    monkeypatch.setattr(mlx_config, "rope", lambda read: {})  # as if mlx-lm had renamed the key it reads
    with pytest.raises(RequestError, match="RoPE base 10,000 where its config.json says 500"):
        load(folder)


def test_code_from_a_model_folder_is_never_run(tmp_path):
    folder = save(tmp_path / "m", "Llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_file": "evil.py"}))
    (folder / "evil.py").write_text("raise SystemExit('ran')")
    with pytest.raises(RequestError, match="could not be loaded"):
        load(folder)


# ------------------------------------------------------------------------------------------------------------- packed


@pytest.fixture(scope="module")
def packed_folder(tmp_path_factory):
    """packed(seed, bits, **how): a folder of weights packed by mlx-lm itself."""
    root = tmp_path_factory.mktemp("packed")

    def packed(seed, bits, **how):
        plain_folder = save(root / f"plain{seed}{bits}", "Llama", seed, hidden_size=64, intermediate_size=128, head_dim=16)
        network, config = mlx_lm.load_model(plain_folder)
        network, config = mlx_lm.quantize_model(network, config, 32, bits, **how)
        folder = root / f"packed{seed}{bits}"
        mlx_lm.save_model(folder, network), mlx_lm.save_config(config, folder / "config.json")
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / file).write_bytes((plain_folder / file).read_bytes())
        return plain_folder, folder

    return packed


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_run_speculatively_and_lose_nothing(packed_folder, bits):
    """Against the packed model's own plain decoding, with a draft and with itself; and they are described for what they are."""
    whole, folder = packed_folder(0, bits)
    _, other = packed_folder(1, bits)
    verifier, draft = load(folder), load(other)
    assert verifier.facts.weights == registry.config(str(folder))["weights"] == f"{bits}-bit in groups of 32"
    full = load(whole)
    for fact in ("parameters", "flops_per_token", "tied_head"):
        assert getattr(verifier.facts, fact) == getattr(full.facts, fact) == registry.config(str(folder))[fact]
    assert verifier.facts.bytes < full.facts.bytes / 2 and verifier.facts.dtype == "float32"
    ids = prompt_of(1, 12)
    assert 0 < np.abs(scores(verifier, ids) - scores(full, ids)).max() < (0.1 if bits == 8 else 2)
    for s in SAMPLINGS[:2]:
        settings = Settings(gamma=3, max_tokens=20, sampling=s)
        same = decoded(verifier, verifier, ids, settings)
        assert all(r.accepted == len(r.proposed) for r in same.rounds)
        assert not s.greedy or decoded(verifier, draft, ids, settings).ids == same.ids == decoded(verifier, None, ids, settings).ids


def test_torch_refuses_packed_weights_and_says_which_engine_reads_them(packed_folder):
    _, folder = packed_folder(2, 4)
    with pytest.raises(RequestError, match="packed by MLX .4-bit in groups of 32., which torch cannot read; choose the backend mlx"):
        load(folder, "torch")


# ------------------------------------------------------------------------------------------------------------ process


def test_mlx_lm_does_not_lower_the_limit_of_open_files():
    """Imported by itself it would: to 2,048, and for good."""
    code = ("import resource as r; _, hard = r.getrlimit(r.RLIMIT_NOFILE); soft = hard if hard > 0 else 100_000\n"
            "r.setrlimit(r.RLIMIT_NOFILE, (soft, hard)); import engine.models.mlx_library\n"
            "assert r.getrlimit(r.RLIMIT_NOFILE) == (soft, hard); r.setrlimit(r.RLIMIT_NOFILE, (64, hard))\n"
            "engine.models.mlx_library._import(); assert r.getrlimit(r.RLIMIT_NOFILE) == (2048, hard), r.getrlimit(r.RLIMIT_NOFILE)")
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------------------------------- thread


def test_a_model_loads_and_runs_on_one_thread_that_is_not_the_first(folders):
    """ML-06: the worker's thread loads, runs, stops half-way and runs again."""
    found, failed = [], []

    def work():
        try:
            model = load(folders("tied"))
            halfway = iter([False, False, True])
            decoded(model, None, prompt_of(1, 5), Settings(max_tokens=12), stop=lambda: next(halfway))
            found.append(decoded(model, model, prompt_of(1, 5), Settings(gamma=3, max_tokens=12)).ids)
            model.close()
        except BaseException as e:
            failed.append(e)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start(), thread.join()
    assert not failed and found[0] == found[1] == decoded(load(folders("tied")), None, prompt_of(1, 5), Settings(max_tokens=12)).ids
