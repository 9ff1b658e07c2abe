"""A stranger's component of each of the seven kinds, as the how-to page writes them: kept to its contract, and used."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from mapping_core import Component
from mapping_core.components import KINDS
from mapping_core.testing import check_component

PAGE = Path(__file__).parents[2] / "docs" / "howto-plugins.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)


@pytest.fixture(scope="module")
def components() -> dict[str, type[Component]]:
    """Run the page, its training run too, and give its component of each kind."""
    namespace: dict[str, Any] = {"__name__": "howto"}
    for block in BLOCKS:
        exec(block, namespace)  # noqa: S102 - our own page
    found = [each for each in namespace.values() if isinstance(each, type) and issubclass(each, Component)]
    return {each.kind: each for each in found if each.__module__ == "howto"}


def test_each_in_forty_lines() -> None:
    """There is a block for each kind, of at most 40 lines of code, and one that trains with all."""
    assert len(BLOCKS) == len(KINDS) + 1
    for block in BLOCKS[:-1]:
        ast.parse(block)
        assert len([line for line in block.splitlines() if line.strip()]) <= 40


@pytest.mark.parametrize("kind", KINDS)
def test_each_keeps_its_contract(kind: str, components: dict[str, type[Component]]) -> None:
    """What the page shows passes the suite it names, but for what a class without a module cannot."""
    here = {"imports_no_torch", "copies_and_pickles"}
    outcomes = list(check_component(components[kind]()))
    bad = [each for each in outcomes if each.result != "passed" and each.check not in here]
    assert not bad, bad[0].message
