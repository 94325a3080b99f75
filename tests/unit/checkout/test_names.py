"""Names in the product: each class has one of its own; no import leads in a circle, and text names no module of a
higher layer.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

from tests.support.checkout import CHECKOUT


@pytest.mark.parametrize("package", ["stripefs", "imagefs"])
def test_no_two_classes_of_a_package_have_one_name(package: str) -> None:
    places = defaultdict(list)
    for module in sorted((CHECKOUT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{module.relative_to(CHECKOUT)}:{node.lineno}")
    assert len(places) > 200
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_no_import_leads_in_a_circle() -> None:
    """Imports inside functions count too; those for types alone load nothing."""
    graph = grimp.build_graph("stripefs", "imagefs", exclude_type_checking_imports=True)
    assert len(graph.modules) > 300
    TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


def test_a_module_that_is_named_in_text_is_in_no_higher_layer() -> None:
    """`python -m` and importlib take names that import-linter does not see."""
    contracts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    ranks = {
        package: rank
        for contract in contracts
        if contract["type"] == "layers"
        for rank, layer in enumerate(contract["layers"])
        for package in re.split(r" [|:] ", layer)
    }
    named = [one for package in ("stripefs", "imagefs") for one in _modules_in_text(package)]
    assert len(named) > 10
    assert [
        f"{where} names {module}"
        for where, module in named
        if _layer(module) in ranks and ranks[_layer(module)] < ranks.get(_layer(where), -1)
    ] == []


def _layer(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _modules_in_text(package: str) -> Iterator[tuple[str, str]]:
    """(module, module that a string in it names) of a package."""
    for path in sorted((CHECKOUT / package).rglob("*.py")):
        where = str(path.relative_to(CHECKOUT).with_suffix("")).replace("/", ".")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
                if re.fullmatch(r"(stripefs|imagefs)(\.[a-z_]+)+", text) and _is_module(text):
                    yield where, text


def _is_module(name: str) -> bool:
    place = Path(CHECKOUT, *name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()
