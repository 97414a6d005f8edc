"""Every control of a page has an option at the command line and the other way round, and both ask for the same."""

import dataclasses
import importlib

import pytest
from streamlit.testing.v1 import AppTest
from streamlit.testing.v1.element_tree import Block, Widget

from engine.__main__ import _parser
from tests.sample_sinks import sample_sinks
from tests.test_taking import MODULES

READING = {"system": "system", "raw": "raw", "backend": "backend", "device": "device", "dtype": "dtype"}
SAMPLING = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty": "repetition_penalty", "seed": "seed",
            "stop_strings": "stop"}
PROMPTS = {"prompt": "prompt", "ready": "ready_set", "path": "prompt_set", "kind": "set_kind", "encoding": "set_encoding",
           "separator": "set_separator", "header": "set_header", "column": "prompt_column", "label_column": "label_column",
           "category_column": "category_column", "count": "first", "spread": "spread", "words": "words"}
SAME = {  # page → control → option of its command
    "compare": {"prompt": "prompt", "verifier": "verifier", "draft": "draft", "drafter": "lookup", "gamma": "gamma", "stop_at": "entropy_stop",
                "ngram": "ngram", "shortest": "ngram_min", "tokens": "max_tokens", "repeats": "repeats", **READING, **SAMPLING},
    "sinks": {"model": "model", "threshold": "threshold", "layers": "layers", "heads": "heads", "corrected": "no_edge_correction",
              "exclude": "include_structural", **READING, **PROMPTS},
    "entropy": {"model": "model", "tokens": "max_tokens", **READING, **SAMPLING, **PROMPTS},
    "polish": {"verifier": "verifier", "draft": "draft", "strategies": "strategy", "ks": "gamma", "prefix": "prefix", "tokens": "max_tokens",
               "repeats": "repeats", **READING, **SAMPLING, **PROMPTS},
    "text": {"text": "text", "names": "tokenizer", "special": "special"},
}
COMMANDS = {"compare": "compare", "sinks": "sinks", "entropy": "entropy", "polish": "uag", "text": "tokens"}
PAGE_ONLY = {  # control → why no option is needed
    "preset": "a ready prompt or pair; at the command line it is typed",
    "stop_on": "--entropy-stop is off unless it is given",
    "source": "which of --prompt, --ready-set and --prompt-set is given says it",
    "prompts": "several prompts that are typed are a file at the command line",
    "upload": "a file is named by --prompt-set", "remove": "a file that is not named is not read",
    "detect": "a detection is undone by leaving the option out", "fitting": "chooses two models and an engine, each an option",
    "all": "all layers and heads are what --layers and --heads leave out",
}
OPTION_ONLY = {  # option → why no control is needed
    "help": "the controls have hover texts", "debug": "the page's log holds the tracebacks", "json": "every result has a JSON download",
    "save": "the pages keep every run", "prompt_file": "a prompt is pasted, or its file chosen under Prompts from",
    "stored": "“Read with Sinks” stands at each answer", "side": "“Read with Sinks” stands at each answer",
}
ALONE = {"certify": "a check of the program, not a view of a run", "models": "the pages list the models in their selectboxes"}


def page():
    """The controls of one page, and those that stand at its result."""
    import importlib

    import streamlit as st

    if st.session_state["page"] == "text":
        importlib.import_module("ui.polish.text").show()
        return
    st.session_state["made"] = importlib.import_module(st.session_state["module"]).draw([])
    if st.session_state["page"] == "sinks":
        importlib.import_module("ui.sinks.result").controls(st.session_state["run"])


def drawn(name, **values):
    """The page with controls set to these values."""
    at = AppTest.from_function(page, default_timeout=60)
    at.session_state["page"], at.session_state["module"], at.session_state["run"] = name, MODULES.get(name), sample_sinks()
    if name == "text":
        at.session_state["polish.text.names"] = []  # no tokenizer has to be read
    for control, value in values.items():
        at.session_state[f"{name}.{control}"] = value
    at.run()
    assert not at.exception, at.exception
    return at


def keys(block):
    for child in block.children.values():
        if isinstance(child, Block):
            yield from keys(child)
        elif isinstance(child, Widget) and child.key:
            yield child.key


def controls_of(name):
    """The names of all controls that a page draws, in each of its ways to give prompts."""
    table = "prompt,id,category\nAla,a,x\nOla,b,y\n".encode()
    ways = [{}] if name in ("compare", "text") else [{"source": "One prompt"}, {"source": "Several prompts"}, {"source": "Ready-made set"},
                                                       {"source": "File", "held": ("a.csv", "abc", table, None), "choices": {"abc": {"kind": "csv"}}}]
    found = set()
    for way in ways:
        for key in keys(drawn(name, **way).main):
            parts = key.removeprefix("polish.text." if name == "text" else f"{name}.").split(".")
            found.add(parts[1] if parts[0] == "view" else parts[0])
    return found


def options_of(command):
    (subparsers,) = (a for a in _parser()._actions if hasattr(a, "choices") and isinstance(a.choices, dict))
    return {action.dest for action in subparsers.choices[command]._actions}


@pytest.mark.parametrize("name", SAME)
def test_controls_and_options_answer_each_other(name):
    controls, options = controls_of(name), options_of(COMMANDS[name])
    assert controls - set(SAME[name]) - set(PAGE_ONLY) == set(), "controls without an option"
    assert options - set(SAME[name].values()) - set(OPTION_ONLY) == set(), "options without a control"
    assert set(SAME[name]) - controls == set() and set(SAME[name].values()) - options == set(), "listed here, and not there"


def test_every_command_has_a_page_or_a_reason():
    from engine.commands import NAMES

    assert set(NAMES) == set(COMMANDS.values()) | set(ALONE)


# ------------------------------------------------------------------------------------------------------- both ask for the same

VALUES = {  # control → (what it is set to, the option's words)
    "prompt": ("Zażółć", ["Zażółć"]), "verifier": ("/models/v", ["/models/v"]), "draft": ("/models/d", ["/models/d"]), "model": ("/models/m", ["/models/m"]),
    "gamma": (7, ["7"]), "ngram": (5, ["5"]), "shortest": (2, ["2"]), "tokens": (33, ["33"]), "repeats": (3, ["3"]), "prefix": (9, ["9"]),
    "ks": ([3, 5], ["5,3"]), "strategies": (["naive", "tli"], ["tli,naive"]), "system": ("Be brief.", ["Be brief."]),
    "backend": ("torch", ["torch"]), "device": ("cpu", ["cpu"]), "dtype": ("float32", ["float32"]), "raw": (None, []),
    "temperature": (0.123456789, ["0.123456789"]), "top_k": (40, ["40"]), "top_p": (0.001, ["0.001"]), "min_p": (0.07, ["0.07"]),
    "penalty": (1.3, ["1.3"]), "seed": (2**53 - 1, [str(2**53 - 1)]), "stop_strings": ("\\n\\n", ["\\n\\n"]), "stop_at": (0.25, ["0.25"]),
}
ASK = {"compare": ["--verifier", "v", "--draft", "d", "--prompt", "x"], "sinks": ["--model", "m", "--prompt", "x"],
       "entropy": ["--model", "m", "--prompt", "x"], "uag": ["--verifier", "v", "--draft", "d", "--prompt", "x"]}


def flat(value, path=""):
    if dataclasses.is_dataclass(value):
        return {k: v for f in dataclasses.fields(value) for k, v in flat(getattr(value, f.name), f"{path}.{f.name}").items()}
    return {path: value}


def asked_at_the_command_line(command, *more):
    args = _parser().parse_args([command, *ASK[command], *more])
    return importlib.import_module(f"engine.commands.{command}").request(args)


def differing(asked, plain):
    """Where a request is another than the plain one, and what stands there."""
    before = flat(plain)
    return {path: value for path, value in flat(asked).items() if before[path] != value}


@pytest.mark.parametrize("name, control", [(name, control) for name in MODULES for control in SAME[name] if control in VALUES])
def test_a_control_and_its_option_change_the_same_field_alike(name, control):
    value, words = VALUES[control]
    extra = {"stop_on": True} if control == "stop_at" else {}
    plain = drawn(name).session_state["made"]
    value = not plain.raw if control == "raw" else value
    by_page = differing(drawn(name, **{control: value}, **extra).session_state["made"], plain)
    option = "--" + SAME[name][control].replace("_", "-")
    by_option = differing(asked_at_the_command_line(COMMANDS[name], option, *words), asked_at_the_command_line(COMMANDS[name]))
    if control == "raw" and plain.raw:  # the Polish page begins raw, for its bundled models know no chat
        by_page = {path: not on for path, on in by_page.items()}
    assert by_page == by_option and len(by_page) == 1


def test_lookup_is_chosen_alike():
    by_page = differing(drawn("compare", drafter="Prompt lookup").session_state["made"], drawn("compare").session_state["made"])
    args = _parser().parse_args(["compare", "--verifier", "v", "--lookup", "--prompt", "x"])
    by_option = differing(importlib.import_module("engine.commands.compare").request(args), asked_at_the_command_line("compare"))
    assert by_page == by_option == {".draft": None, ".settings.drafter": "lookup"}
