"""What the files alone rule out is said before anything loads: no torch is imported, no stage of loading begins, status 2."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine import preflight
from engine.attention import run as sinks
from engine.decoding import compare, entropy, uag
from engine.errors import RequestError
from engine.models import memory
from engine.request import Asked, CompareRequest, EntropyRequest, SinksRequest, UagRequest
from engine.trace import Settings
from tests.browser import ROOT
from tests.scripted import letters
from tests.toys import NO_SYSTEM, THINKING, byte_level, chat_toy, sentencepiece_like, tiny_llama

SHORT = Settings(max_tokens=8)


@pytest.fixture(scope="module")
def at(tmp_path_factory) -> dict[str, str]:
    """Folders: two that fit, one of another vocabulary, one whose template refuses the system role, and damaged ones."""
    top = tmp_path_factory.mktemp("models")
    made = {"verifier": tiny_llama(top / "verifier", context=64), "draft": tiny_llama(top / "draft", seed=1, context=64),
            "other": tiny_llama(top / "other", sentencepiece_like(NO_SYSTEM), context=64), "bytes": tiny_llama(top / "bytes", byte_level(THINKING), context=64)}
    for name, fields in (("bert", {"model_type": "bert", "architectures": ["BertForMaskedLM"]}), ("t5", {"model_type": "t5", "is_encoder_decoder": True}),
                         ("negative", {"max_position_embeddings": -1}), ("shallow", {"num_hidden_layers": 1}), ("packed", {"quantization": {"bits": 4, "group_size": 32}})):
        made[name] = tiny_llama(top / name)
        config = json.loads((made[name] / "config.json").read_text())
        (made[name] / "config.json").write_text(json.dumps({**config, **fields}))
    made["generation"] = tiny_llama(top / "generation")
    (made["generation"] / "generation_config.json").write_text("[2]")
    made["tokenizer"] = tiny_llama(top / "tokenizer")
    (made["tokenizer"] / "tokenizer.json").write_text('{"model": 3}')
    made["mixed"] = tiny_llama(top / "mixed", letters(50).tokenizer)
    letters(550).tokenizer.save_pretrained(made["mixed"])
    return {name: str(folder) for name, folder in made.items()}


def run(*arguments: str) -> tuple[int, bool, str]:
    program = "import sys\nfrom engine.__main__ import main\nstatus = main(sys.argv[1:])\nprint(status, bool({'torch', 'mlx.core'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)
    status, torch = done.stdout.split()
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr
    return int(status), torch == "True", done.stderr


CASES = [
    (["compare", "--verifier", "verifier", "--draft", "other", "--prompt", "Ala"], "other cannot draft for verifier: the vocabularies differ in"),
    (["compare", "--verifier", "bert", "--lookup", "--prompt", "Ala"], "is an encoder, which reads in both directions (bert, BertForMaskedLM)"),
    (["compare", "--verifier", "verifier", "--draft", "bert", "--prompt", "Ala"], "is an encoder"),
    (["compare", "--verifier", "mixed", "--lookup", "--prompt", "t3"], "ids up to 549, and the embedding of its weights has 50 rows"),
    (["compare", "--verifier", "verifier", "--draft", "generation", "--prompt", "Ala"], "generation_config.json is damaged: it holds no JSON object"),
    (["compare", "--verifier", "verifier", "--draft", "draft", "--prompt", "Ala ma kota " * 40], "The prompt is too long: about "),
    (["compare", "--verifier", "packed", "--lookup", "--backend", "torch", "--prompt", "Ala"], "packed by MLX"),
    (["certify", "--verifier", "verifier", "--draft", "other"], "other cannot draft for verifier"),
    (["entropy", "--model", "t5", "--prompt", "Ala"], "is an encoder-decoder"), (["entropy", "--model", "bert", "--prompt", "Ala"], "is an encoder"),
    (["entropy", "--model", "tokenizer", "--prompt", "Ala"], "tokenizer.json is damaged"),
    (["entropy", "--model", "negative", "--prompt", "Ala"], "config.json is damaged: max_position_embeddings is -1"),
    (["entropy", "--model", "bundled:smollm2-draft", "--prompt", "Ala"], "is a draft that scores only some of its verifier's tokens"),
    (["sinks", "--model", "shallow", "--prompt", "Ala"], "would not be used"), (["sinks", "--model", "bert", "--prompt", "Ala"], "is an encoder"),
    (["sinks", "--model", "verifier", "--raw", "--prompt", "Ala " * 80], "The prompt is too long: about "),
    (["uag", "--verifier", "verifier", "--draft", "bert", "--prompt", "Ala"], "is an encoder"),
    (["uag", "--verifier", "verifier", "--draft", "bytes", "--prompt", "Ala", "--strategy", "magic"], "no strategy “magic”"),
    (["uag", "--verifier", "bytes", "--draft", "other", "--prompt", "Ala", "--system", "Ola"], "refuses the role system"),
    (["uag", "--verifier", "bundled:smollm2-draft", "--draft", "bytes", "--prompt", "Ala"], "so it cannot be a verifier"),
]


@pytest.mark.parametrize("arguments, said", CASES)
def test_the_command_line_refuses_before_torch_is_imported(at, arguments, said):
    status, torch, error = run(*(at.get(a, a) for a in arguments))
    assert said in error and status == 2 and not torch


def unloaded(*_):
    raise AssertionError("something was loaded")


@pytest.mark.parametrize("work, request_of, said", [
    (compare, lambda at: CompareRequest("Ala", at["verifier"], at["other"], settings=SHORT), "cannot draft for"),
    (compare, lambda at: CompareRequest("Ala", at["verifier"], at["draft"], system="Ola", raw=True, settings=SHORT), "has no system role"),
    (compare, lambda at: CompareRequest("Ala ma " * 40, at["verifier"], at["draft"], settings=SHORT), "too long: about"),
    (compare, lambda at: CompareRequest("Ala", at["bert"], at["bert"], settings=SHORT), "is an encoder"),
    (entropy, lambda at: EntropyRequest((Asked("Ala"),), at["mixed"], settings=SHORT), "has 50 rows"),
    (entropy, lambda at: EntropyRequest((Asked("Ala \0"),), at["verifier"], settings=SHORT), "NUL"),
    (sinks, lambda at: SinksRequest((Asked("Ala"),), at["t5"]), "is an encoder-decoder"),
    (uag, lambda at: UagRequest((Asked("Ala"),), at["bytes"], at["other"], system="Ola", settings=SHORT), "refuses the role system"),
    (uag, lambda at: UagRequest((Asked("Ala \0"), Asked("a \0")), at["bytes"], at["verifier"], settings=SHORT), "None of the 2 prompts can be run. The first: "),
])
def test_a_job_is_refused_before_its_first_stage(at, work, request_of, said):
    with pytest.raises(RequestError, match=said):
        next(work.run(request_of(at), unloaded))


def test_what_can_be_done_is_let_through_to_loading(at):
    for work, asked in ((compare, CompareRequest("Ala ma kota", at["verifier"], at["draft"], settings=SHORT)),
                        (entropy, EntropyRequest((Asked("Ala"), Asked("Ala \0")), at["verifier"], settings=SHORT)),
                        (sinks, SinksRequest((Asked("Ala \0"), Asked("")), at["verifier"])),
                        (uag, UagRequest((Asked("Ala \0"), Asked("Ala")), at["bytes"], at["verifier"], settings=SHORT))):
        assert next(work.run(asked, unloaded)).text.startswith("Loading ")


def test_models_that_are_not_here_yet_are_left_to_whoever_fetches_them(at):
    preflight.check(CompareRequest("Ala", "org/not-here", at["draft"]), held=0)
    preflight.check(CompareRequest("Ala", at["verifier"], "org/not-here"), held=0)
    with pytest.raises(RequestError, match="is an encoder"):
        preflight.check(CompareRequest("Ala", "org/not-here", at["bert"]))


def test_too_little_memory_for_both_models_and_the_length_is_told(at, monkeypatch):
    asked = CompareRequest("Ala", at["verifier"], at["draft"], settings=SHORT, device="cpu", dtype="float32")
    need = memory.forecast((at["verifier"], at["draft"]), "float32", SHORT.max_tokens + 1, "cpu").total_bytes
    monkeypatch.setattr(memory, "room", lambda device: (2**34, need - 1))
    preflight.files(asked, held=1)
    preflight.files(asked)  # whoever cannot tell what is held asks for no memory
    with pytest.raises(RequestError, match="together need about .* GB of memory for 9 tokens, and .* of 16 GB are free"):
        preflight.files(asked, held=0)
    longer = replace(asked, settings=Settings(max_tokens=48))
    with pytest.raises(RequestError, match="for 49 tokens"):
        preflight.files(longer, held=1)


def test_a_bundled_pair_and_a_cross_pair_pass_in_well_under_a_second_the_second_time():
    import time

    asked = CompareRequest("Explain photosynthesis.", "bundled:smollm2-135m", "bundled:smollm2-draft")
    preflight.check(asked, held=0)
    started = time.process_time()
    preflight.check(asked, held=0)
    assert time.process_time() - started < 1
    preflight.check(UagRequest((Asked("Ala"),), "bundled:polish-verifier", "bundled:polish-draft", raw=True))


def test_a_state_that_cannot_be_rolled_back_is_told_from_the_config(at, tmp_path):
    import shutil

    folder = Path(shutil.copytree(at["verifier"], tmp_path / "hybrid"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "layer_types": ["linear_attention", "full_attention"]}))
    with pytest.raises(RequestError, match="hybrid keeps a state that cannot be rolled back"):
        preflight.files(CompareRequest("Ala", str(folder), at["draft"], settings=SHORT))
    preflight.files(EntropyRequest((Asked("Ala"),), str(folder), settings=SHORT))


def test_prompts_are_read_as_the_loader_reads_them(at):
    """The reader without transformers' classes and the model's own vocabulary give one answer for these folders."""
    from engine.models import registry

    for name, text in (("verifier", "Ala ma kota"), ("other", "Zażółć"), ("bytes", "żółć <think>")):
        own = registry.load(at[name], "cpu", "float32").vocabulary
        assert preflight.prompts.build(preflight._reader(at[name]), text).ids == preflight.prompts.build(own, text).ids
    assert chat_toy().get_vocab() == preflight._reader(at["verifier"]).ids_by_token()
