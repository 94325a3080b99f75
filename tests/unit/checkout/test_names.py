"""Names in the product: each class of a package has one of its own."""

from __future__ import annotations

import ast
from collections import defaultdict

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
