"""The plugin API does not change unannounced: the code says what `api.txt` and the documentation say."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from pathlib import Path

import mapping_core
from mapping_core import hookspecs
from mapping_core.components import KINDS
from tests import api

ROOT = Path(__file__).parents[2]
CHANGED = """the plugin API is not what api.txt says (- api.txt, + the code):
{}
If this is meant: docs/plugin-api.md says what may change within a series; announce it in changelog.d,
and write the file anew with: python -m tests.api > api.txt"""


def test_the_api_is_the_announced_one() -> None:
    """Names, fields, methods and signatures are those of api.txt, to the letter."""
    announced = ROOT.joinpath("api.txt").read_text(encoding="utf-8").splitlines()
    found = list(api.lines())
    changes = [
        line for line in difflib.unified_diff(announced, found, lineterm="", n=0) if line[:2] not in ("--", "++")
    ]
    assert announced == found, CHANGED.format("\n".join(changes))


def test_the_list_sees_changes() -> None:
    """A name, a field, a method, an argument and a default each have a line of their own or stand in one."""
    text = "\n".join(api.lines())
    for line in (
        "mapping_core: MapperConfig",
        "mapping_core.testing: MapperSuite",
        "mapping_core.hookspecs.mapping_mappers() -> Sequence[type[MapperConfig]]",
        "mapping_core.components.MapperConfig.build(self, context: MapperContext) -> Mapper",
        "mapping_core.contexts.MapperContext.stream: int = 0",
        "mapping_core.interfaces.mapper.Mapper.rows(self, z: Tensor, start: int, stop: int) -> Tensor",
        "mapping_core.interfaces.generator.Generator.latent_sizes(self) -> dict[str, int]  # property",
    ):
        assert line in text


def test_the_documented_hooks_are_the_hooks() -> None:
    """The page lists each hook with its signature as the code has it, in the order of the kinds."""
    page = ROOT.joinpath("docs", "plugin-api.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text\n(.*?)^```$", page, re.S | re.M)
    tree = ast.parse(inspect.getsource(hookspecs))
    specified = [
        api.signature(node)
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(ast.unparse(each) == "hookspec" for each in node.decorator_list)
    ]
    assert block.splitlines() == specified
    assert [line.partition("(")[0] for line in specified] == [kind.hook for kind in KINDS.values()]


def test_the_documented_series_is_core_s() -> None:
    """The page, and the example of a requirement on it, speak of this version's series."""
    page = ROOT.joinpath("docs", "plugin-api.md").read_text(encoding="utf-8")
    major, minor, _ = mapping_core.__version__.split(".")
    assert f"now **{major}.{minor}**" in page
    assert f'"mapping-core>={major}.{minor},<{major}.{int(minor) + 1}"' in page
