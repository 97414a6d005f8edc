"""Everything that works with torch works with MLX: every command, the worker's queue, decoding across tokenizers, memory."""

from __future__ import annotations

import json
import threading

import mlx.core as mx
import pytest
from mlx_lm import utils as mlx_lm

from cache.loaded import Loaded, memory_shortfall
from cache.worker import Worker
from engine import pair
from engine.__main__ import main
from engine.attention import peak
from engine.decoding import compare
from engine.errors import RequestError
from engine.models import memory, metal, presets, registry
from engine.request import CompareRequest, Step
from engine.trace import Sampling, Settings
from engine.trace.uag import STRATEGIES
from tests.crossing import alone, counts, crossed
from tests.mlx_folders import load
from tests.toys import byte_level, sentencepiece_like, tiny_llama
from ui.pairline import pair_html

STORY = "Zażółć gęślą jaźń"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders of one vocabulary, and one with another tokenizer."""
    root = tmp_path_factory.mktemp("models")
    made = {"a": tiny_llama(root / "a", byte_level(), 0, eos_token_id=None), "b": tiny_llama(root / "b", byte_level(), 1, eos_token_id=None),
            "other": tiny_llama(root / "other", sentencepiece_like(), 2, eos_token_id=None)}
    return {name: str(path) for name, path in made.items()}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECLENS_HOME", str(tmp_path / "home"))


# ------------------------------------------------------------------------------------------------------------ commands


@pytest.mark.parametrize("command", ["compare", "compare --lookup", "certify", "sinks", "entropy", "uag"])
def test_every_command_runs_on_mlx(folders, tmp_path, command):
    pair = ["--verifier", folders["a"], *(["--lookup"] if "--lookup" in command else
                                          ["--draft", folders["other" if command == "uag" else "b"]])]
    options = {"compare": [*pair, "--prompt", STORY, "--max-tokens", "6"], "certify": [*pair, "--max-tokens", "4"],
               "sinks": ["--model", folders["a"], "--prompt", STORY], "entropy": ["--model", folders["a"], "--prompt", STORY, "--max-tokens", "6"],
               "uag": [*pair, "--prompt", STORY, "--max-tokens", "6", "--gamma", "2"]}[command.split()[0]]
    out = tmp_path / "out.json"
    assert main([command.split()[0], *options, "--backend", "mlx", "--dtype", "float32", "--json", str(out)]) == 0
    told = json.loads(out.read_text())
    if command == "certify":
        assert told["backend"].startswith("mlx") and "both engines" in [c["name"] for c in told["checks"]]
    else:
        run = told.get("run", told)
        assert {m["backend"] for m in run["models"].values()} == {"mlx"} and run["status"] == "done"


def test_the_list_of_models_names_the_engines(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "without_mlx", lambda: "MLX is not installed.")
    assert main(["models", "--json", str(tmp_path / "m.json")]) == 0
    assert "backend mlx is not available: MLX is not installed." in capsys.readouterr().out
    assert json.loads((tmp_path / "m.json").read_text())["backends"] == [
        {"name": "torch", "available": True, "why": ""}, {"name": "mlx", "available": False, "why": "MLX is not installed."}]


# -------------------------------------------------------------------------------------------------------------- worker


def test_two_sessions_queue_on_one_thread_and_stop_keeps_what_was_written(folders):
    """ML-06, with the real engine: each text is that of its own single run, and a stopped run leaves the model as it was."""
    loaded, runs, threads = Loaded(), {}, set()
    worker = Worker(on_done=lambda run: runs.setdefault(run.prompt.text, run) and run.id)

    def task(prompt, first=None):
        request = CompareRequest(prompt, folders["a"], folders["b"], raw=True, settings=Settings(gamma=3, max_tokens=400 if first else 12),
                                 backend="mlx", dtype="float32")

        def work(stop):
            threads.add(threading.current_thread().name)
            with loaded.using() as get:
                for event in compare.run(request, get, stop):
                    if first is not None and isinstance(event, Step):
                        first.set()
                    yield event
        return worker.submit(request, work, "Compare", owner=prompt)

    written = threading.Event()
    stopped = task("halted", written)
    others = [task(text) for text in ("one", "two", "one again")]
    try:
        assert written.wait(60) and worker.stop(stopped)
        assert all(job.wait(60) for job in (stopped, *others)), [job.snapshot().stage for job in others]
        assert [job.error for job in (stopped, *others)] == [None] * 4 and threads == {"speclens-worker"}
    finally:
        worker.close(20)
    assert runs["halted"].status == "stopped" and 0 < len(runs["halted"].plain.ids) < 400
    for text in ("one", "two", "one again"):
        prompt = runs[text].prompt.ids
        assert runs[text].plain.ids == runs[text].speculative.ids
        assert runs[text].plain.ids == alone(load(folders["a"], "torch"), text, Settings(max_tokens=12)).ids and len(prompt) == len(text)


# --------------------------------------------------------------------------------------------------- other tokenizers


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Two folders with different tokenizers whose weights mlx-lm packed to 4 bits."""
    root = tmp_path_factory.mktemp("packed")

    def pack(name, tokenizer, seed):
        plain = tiny_llama(root / f"{name}-plain", tokenizer, seed, eos_token_id=None, hidden_size=64, intermediate_size=128)
        network, config = mlx_lm.quantize_model(*mlx_lm.load_model(plain), 32, 4)
        mlx_lm.save_model(root / name, network), mlx_lm.save_config(config, root / name / "config.json")
        tokenizer.save_pretrained(root / name)
        return load(root / name)

    return pack("v", byte_level(), 0), pack("d", sentencepiece_like(), 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_across_tokenizers_no_id_changes_on_mlx_also_with_packed_weights(folders, packed, strategy):
    for verifier, draft in ((load(folders["a"]), load(folders["other"])), (load(folders["other"]), load(folders["a"])), packed):
        settings = Settings(gamma=3, max_tokens=16)
        assert crossed(verifier, draft, strategy, STORY, settings).ids == alone(verifier, STORY, settings).ids


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_across_tokenizers_mlx_writes_what_torch_writes(folders, strategy):
    """Sampling: the same candidates, the same verdicts, the same text from the same seed."""
    settings = Settings(gamma=3, max_tokens=16, sampling=Sampling(temperature=1.0, top_p=0.95, seed=5))
    a, b = (crossed(load(folders["a"], engine), load(folders["other"], engine), strategy, STORY, settings) for engine in ("mlx", "torch"))
    assert a.ids == b.ids and [r.proposed for r in a.rounds] == [r.proposed for r in b.rounds] and counts(a) == counts(b)


# -------------------------------------------------------------------------------------------------------------- memory


def test_memory_is_foreseen_before_mlx_loads_anything(folders, packed, monkeypatch):
    float32, packed_facts = memory.forecast([folders["a"]], backend="mlx", device="cpu"), packed[0].facts
    assert float32.parts[0].weights_bytes == 4 * registry.config(folders["a"])["parameters"]  # float32 is MLX's own on a CPU
    # Packed weights stay packed; in float32 their scales and the norms grow a little over the file.
    stored = memory.forecast([packed_facts.name], backend="mlx").parts[0].weights_bytes
    assert stored < 0.6 * 2 * packed_facts.parameters and packed_facts.bytes < 1.2 * stored
    monkeypatch.setattr(memory, "memory_available", lambda: 100_000)
    with pytest.raises(RequestError, match=r"needs about .* GB of memory in float32, and .* are free"):
        registry.load(folders["a"], "cpu", "float32", "mlx")


def test_page_and_loader_foresee_the_memory_of_the_engine_asked_for(folders, monkeypatch):
    for name in ("possible", "available"):
        monkeypatch.setattr(metal, name, lambda: False)
    monkeypatch.setattr(memory, "default_dtype", lambda device, parameters=0: "bfloat16")  # as torch has it on a CPU with such units
    torch, mlx = (pair.check(folders["a"], folders["b"], backend=engine).forecast for engine in ("torch", "mlx"))
    assert [2 * part.weights_bytes for part in torch.parts] == [part.weights_bytes for part in mlx.parts]
    seen, forecast = [], memory.forecast

    def spy(names, dtype, tokens, device, held=0, backend="torch"):
        seen.append(backend)
        return forecast(names, dtype, tokens, device, held, backend)

    monkeypatch.setattr(memory, "forecast", spy)
    monkeypatch.setattr(pair, "forecast", spy)
    for engine in ("auto", "torch", "mlx"):
        assert "same vocabulary" in pair_html(CompareRequest(STORY, folders["a"], folders["b"], backend=engine))
        assert "needs no draft model" in pair_html(CompareRequest(STORY, folders["a"], backend=engine))
        assert memory_shortfall(folders["a"], "auto", "auto", engine) == 0
    assert seen == ["torch"] * 5 + ["mlx"] * 3  # auto is torch where there is no Apple GPU, and that pair was looked over already


def test_the_peak_on_apples_gpu_is_mlxs_own_counter():
    """Here MLX counts what its CPU build takes."""
    held = mx.ones(5_000_000)
    mx.eval(held)
    with peak.measure_peak("metal") as measured:
        more = mx.ones(25_000_000)
        mx.eval(more)
        del more
    with peak.measure_peak("metal") as idle:
        pass
    assert 100e6 <= measured.extra_bytes < 110e6 and idle.extra_bytes < 1e6


def test_apples_gpu_may_hold_a_part_of_the_machines_memory(monkeypatch):
    monkeypatch.setattr(memory, "memory_total", lambda: 16 * 2**30)
    monkeypatch.setattr(memory, "memory_available", lambda: 15 * 2**30)
    assert memory.room("auto") == (16 * 2**30, 15 * 2**30)
    monkeypatch.setattr(metal, "possible", lambda: True)
    assert memory.room("auto") == memory.room("metal") == (16 * 2**30, 12 * 2**30) and memory.room("cpu")[1] == 15 * 2**30


@pytest.mark.parametrize("gb, verifier", [(4, None), (7.9, "3B"), (16, "7B"), (24, "7B"), (32, "14B"), (128, "14B")])
def test_presets_fit_the_memory_they_are_meant_for(gb, verifier):
    found = presets.fitting(int(gb * 2**30))
    assert (found is None) == (verifier is None)
    assert found is None or (f"-{verifier}-" in found.verifier and found.weights_gb <= found.memory_gb / 3 and verifier in found.title)
