"""The plan of the house: which way imports point, what the engine may know, and how large a room may grow."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("engine", "cache", "ui", "pages", "app")  # ground floor first; a floor may import itself and those below
SOURCES = sorted(p for folder in ("engine", "cache", "ui", "pages", "bench", "training", "tests") for p in (ROOT / folder).rglob("*.py"))
SOURCES.append(ROOT / "app.py")
HOUSE = [p for p in SOURCES if p.relative_to(ROOT).parts[0].removesuffix(".py") in FLOORS]
HEAVY = {"torch", "transformers", "mlx", "mlx_lm", "accelerate", "gguf"}
MODULES = {}  # dotted name -> path, of everything in this repository


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES.update({dotted(p): p for p in SOURCES})


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def imports(path: Path, at_import_only: bool = False) -> frozenset[str]:
    """Dotted names of the modules `path` imports. `at_import_only`: those that importing it runs, so none inside functions.

    Imports for the type checker alone never run and are left out.
    """
    found = set()

    def walk(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if at_import_only and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    here = dotted(path).split(".")
                    up = here[: len(here) - child.level + (path.name == "__init__.py")]
                    base = ".".join(up + ([base] if base else []))
                for alias in child.names:
                    inner = f"{base}.{alias.name}"
                    found.add(inner if inner in MODULES else base)
            walk(child)

    walk(ast.parse(path.read_text(encoding="utf-8"), str(path)))
    return frozenset(found)


def reached(path: Path) -> dict[str, tuple[str, ...]]:
    """Every module that importing `path` runs, each with the chain of files that leads to it."""
    chains, todo = {}, [(path, (named(path),))]
    while todo:
        here, chain = todo.pop()
        for name in imports(here, at_import_only=True):
            parts = name.split(".")
            for step in (".".join(parts[:n]) for n in range(1, len(parts) + 1)):  # a package's __init__ runs first
                if step not in chains:
                    chains[step] = chain
                    if step in MODULES:
                        todo.append((MODULES[step], (*chain, named(MODULES[step]))))
    return chains


def test_the_reader_of_imports_sees_them_wherever_they_stand(tmp_path):
    file = tmp_path / "room.py"
    file.write_text("import a.b\nif TYPE_CHECKING:\n    import typed\nclass C:\n    import c\n"
                    "def f():\n    from engine import trace\n    try:\n        import d\n    finally:\n        pass\n")
    assert imports(file) == {"a.b", "c", "d", "engine.trace"}
    assert imports(file, at_import_only=True) == {"a.b", "c"}


def test_the_house_is_there():
    assert {p.relative_to(ROOT).parts[0].removesuffix(".py") for p in HOUSE} == set(FLOORS)


@pytest.mark.parametrize("path", HOUSE, ids=named)
def test_imports_point_downwards(path):
    floor = FLOORS.index(dotted(path).split(".")[0])
    above = set(FLOORS[floor + 1:]) | {"tests", "bench", "training"}
    wrong = sorted(name for name in imports(path) if name.split(".")[0] in above)
    assert not wrong, f"{named(path)} imports {wrong} from above"


def test_the_engine_knows_no_streamlit():
    for path in (p for p in HOUSE if dotted(p).split(".")[0] == "engine"):
        assert not [name for name in imports(path) if name.split(".")[0] in ("streamlit", "altair")], named(path)


@pytest.mark.parametrize("room, unknown", [
    ("engine.trace", ("engine.models", "engine.decoding", "engine.analysis", "torch", "transformers")),
    ("engine.tokens", ("engine.models", "engine.decoding", "engine.analysis", "torch")),
    ("engine.sampling", ("engine.models", "engine.decoding", "engine.analysis")),
    ("engine.analysis", ("engine.models", "engine.decoding", "torch", "transformers")),
    ("engine.models", ("engine.decoding", "engine.analysis", "engine.commands")),
    ("engine.numerics", ("engine.models", "engine.decoding", "engine.analysis", "transformers")),
    ("engine.decoding", ("engine.commands", "torch", "transformers", "mlx")),
])
def test_a_room_of_the_engine_does_not_know(room, unknown):
    rooms = [path for name, path in MODULES.items() if name == room or name.startswith(room + ".")]
    assert rooms
    for path in rooms:
        wrong = [name for name in imports(path) for other in unknown if name == other or name.startswith(other + ".")]
        assert not wrong, f"{named(path)} imports {wrong}"


def test_no_two_modules_import_each_other_in_a_circle():
    edges = {name: {i for i in imports(path) if i in MODULES and i != name} for name, path in MODULES.items()}
    done, trail = set(), []

    def visit(name):
        if name in trail:
            pytest.fail("circle: " + " → ".join(trail[trail.index(name):] + [name]))
        if name in done:
            return
        trail.append(name)
        for other in sorted(edges[name]):
            visit(other)
        done.add(trail.pop())

    for name in sorted(edges):
        visit(name)


@pytest.mark.parametrize("path", [p for p in HOUSE if dotted(p).split(".")[0] in ("app", "pages")], ids=named)
def test_opening_a_page_imports_no_model_library(path):
    heavy = {name: chain for name, chain in reached(path).items() if name.split(".")[0] in HEAVY}
    assert not heavy, "; ".join(f"{' → '.join(chain)} → {name}" for name, chain in heavy.items())


def test_the_app_imports_only_what_its_requirements_bring():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    listed = {re.split(r"[<>=;\s]", line)[0].lower().replace("-", "_") for line in lines if line and not line.startswith("#")}
    listed = {{"vl_convert_python": "vl_convert"}.get(name, name) for name in listed}
    listed |= {"mlx", "huggingface_hub", "pyarrow", "starlette"}  # brought by mlx-lm, by transformers and by streamlit
    allowed = listed | (set(sys.stdlib_module_names) - {"tomllib"}) | set(FLOORS)  # tomllib: not in 3.10
    for path in HOUSE:
        wrong = sorted(name for name in imports(path) if name.split(".")[0] not in allowed)
        assert not wrong, f"{named(path)} imports {wrong}"


@pytest.mark.parametrize("path", SOURCES, ids=named)
def test_a_file_is_a_room_not_a_hall(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 350, f"{named(path)} has {lines} lines"


def test_code_from_a_model_repository_is_never_run():
    """Where transformers' switch for it is named at all it is off; and nothing loads pickles, which are code too."""
    switch = "trust_remote" + "_code"
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == switch:
                assert isinstance(node.value, ast.Constant) and node.value.value is False, f"{named(path)}:{node.value.lineno}"
            if isinstance(node, ast.Constant):
                assert node.value != switch, f"{named(path)}:{node.lineno}"
            if isinstance(node, ast.Call):
                called, safe = ast.unparse(node.func), "weights_only=True" in ast.unparse(node)  # a training checkpoint of our own
                assert called not in ("pickle.load", "pickle.loads") and (called != "torch.load" or safe), f"{named(path)}:{node.lineno}"


def test_every_file_is_read_by_the_oldest_python_supported():
    for path in SOURCES:
        ast.parse(path.read_text(encoding="utf-8"), named(path), feature_version=(3, 10))


def test_nothing_is_left_for_later():
    """No marks of unfinished work, and no test that is switched off."""
    words = [a + b for a, b in (("TO", "DO"), ("FIX", "ME"), ("raise Not", "Implemented"), ("pytest.mark.", "skip"),
                                ("pytest.", "skip("), ("mark.", "xfail"))]
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not [word for word in words if word in text], f"{named(path)}: {[w for w in words if w in text]}"
