"""Imports point one way. Read from the source with `ast`, so that lazy imports inside functions count as well."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import augury

ROOT = Path(augury.__file__).parent

LAYERS = (
    {"ids", "errors", "units", "buffers", "knowledge"},
    {"columns", "catalog", "encoding"},
    {"sources", "scorers", "samplers", "policies", "tiers"},
    {"recipes", "metrics", "step", "cache", "jobs", "trace", "distributed", "collate"},
    {
        "sim",
        "fetch",
        "digests",
        "journal",
        "gather",
        "batch",
        "arguments",
        "levels",
        "storage",
        "probe",
        "workers",
        "staging",
        "schedule",
        "reports",
        "feedback",
        "exchange",
        "learning",
        "owned",
        "holders",
        "filling",
        "planning",
        "tally",
        "transforms",
        "packages",
    },
    {"node", "cluster"},
    {"loader", "torch", "testing"},
    {"commands", "cli", "demo", "dashboard", "learner", "pictures", "recording"},
)
"""A part may import parts of the layers above its own, and, without going in circles, of its own."""

SIBLINGS = LAYERS[2]
BORROWED = {"tiers": {"augury.sources.Buffer"}}
"""What one sibling may have from another: a type."""

TORCH = {"loader", "torch", "commands", "demo", "learner"}
TORCH_INSIDE_FUNCTIONS = {
    "encoding",
    "batch",
    "distributed",
    "buffers",
    "collate",
    "sources.dataset",
    "reports",
    "exchange",
}
"""They handle tensors if they are given any; whoever has tensors has torch."""

PICKLE_TRIED = {"workers", "testing.sources"}
"""They ask whether an object can be sent to another process; nothing is ever read from a pickle otherwise."""

HEAVY = {"torch", "redis", "obstore", "typer", "rich", "matplotlib", "hypothesis", "pytest", "lmdb"}
HEAVY |= {"PIL", "simplejpeg"}


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> dict[str, ast.Module]:
    """name -> tree, for every module of the package."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__").replace("__init__", "")] = ast.parse(path.read_text())
    return found


MODULES = modules()


@cache
def imports(tree: ast.AST, only_at_top: bool = False) -> frozenset[str]:
    """Dotted names, down to what is imported from a module; not what is for type checkers only."""
    return frozenset(_imports(tree, only_at_top))


def _imports(tree: ast.AST, only_at_top: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.expr) or (only_at_top and isinstance(node, FUNCTIONS)):
            continue
        else:
            yield from _imports(node, only_at_top)


def part(name: str) -> str:
    return name.split(".")[0]


def layer(name: str) -> int:
    for number, names in enumerate(LAYERS):
        if name in names:
            return number
    raise AssertionError(f"augury.{name} is in no layer: say in LAYERS where it belongs")


@cache
def own_imports(name: str) -> set[str]:
    """The other parts of the package that a module imports."""
    found = (imported.split(".")[1:2] for imported in imports(MODULES[name]) if imported.startswith("augury."))
    return {names[0] for names in found if (ROOT / names[0]).is_dir() or (ROOT / f"{names[0]}.py").exists()}


PARTS = sorted(name for name in MODULES if name)


def test_imports_point_one_way():
    for name in PARTS:
        for other in own_imports(name) - {part(name)}:
            assert layer(other) <= layer(part(name)), f"{name} must not import {other}"


def test_siblings_do_not_import_each_other():
    for name in PARTS:
        for imported in imports(MODULES[name]) if part(name) in SIBLINGS else ():
            other = imported.split(".")[1] if imported.startswith("augury.") else ""
            if other in SIBLINGS - {part(name)}:
                assert imported in BORROWED.get(part(name), set()), f"{name} must not import {imported}"


def test_no_circles():
    edges: dict[str, set[str]] = {}
    for name in PARTS:
        edges.setdefault(part(name), set()).update(own_imports(name) - {part(name)})
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"imports go in a circle: {' -> '.join((*path, name))}"
        if name not in done:
            for other in sorted(edges.get(name, ())):
                visit(other, (*path, name))
            done.add(name)

    for name in sorted(edges):
        visit(name, ())


def test_the_simulator_moves_no_bytes():
    for name in PARTS:
        if part(name) == "sim":
            assert not own_imports(name) & {"sources", "tiers", "fetch", "cache", "node", "loader", "catalog"}, name


def test_decisions_need_numpy_and_nothing_else():
    light = {"augury", "numpy", "__future__", "collections", "dataclasses", "enum", "typing", "functools", "math"}
    for name in PARTS:
        if part(name) in {"policies", "samplers", "scorers"}:
            assert own_imports(name) <= {part(name), "ids", "errors", "knowledge"}, name
            assert _tops(imports(MODULES[name])) <= light, name


def test_torch_is_imported_late_and_by_few():
    for name in PARTS:
        assert part(name) == "torch" or "torch" not in _tops(imports(MODULES[name], only_at_top=True)), name
        if part(name) not in TORCH and name not in TORCH_INSIDE_FUNCTIONS:
            assert "torch" not in _tops(imports(MODULES[name])), name


def test_the_core_needs_nothing_heavy():
    for name in MODULES:
        if part(name) not in {"commands", "cli", "demo", "testing", "torch"}:
            assert not _tops(imports(MODULES[name], only_at_top=True)) & HEAVY, name


def test_nobody_reads_pickles():
    for name in PARTS:
        if name not in PICKLE_TRIED:
            found = _tops(imports(MODULES[name])) & {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
            assert not found, f"{name} imports {found}"


def _tops(names: Iterable[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_the_test_itself_sees_lazy_and_nested_imports():
    tree = ast.parse("def f():\n    import torch\nif x:\n    from augury.cache import Cache\n")
    assert set(imports(tree)) == {"torch", "augury.cache.Cache"}
    assert set(imports(tree, only_at_top=True)) == {"augury.cache.Cache"}
