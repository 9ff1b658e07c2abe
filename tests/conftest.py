"""What tests of every folder share: hand-made distributions. Imports no torch."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest
from attrs import define

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

GOOD_PLUGIN = '''"""A plugin that adds one callback."""
from attrs import define, field
from attrs.validators import ge
from mapping_core import CallbackConfig, hookimpl

@define(frozen=True, kw_only=True)
class Quiet(CallbackConfig):
    name = "quiet"
    patience: int = field(default=3, validator=ge(1))

@hookimpl
def mapping_callbacks():
    return [Quiet]
'''


@define(frozen=True)
class Site:
    """A folder that is searched for distributions, as site-packages is."""

    folder: Path

    def add(
        self,
        distribution: str,
        code: str,
        *,
        version: str = "1.0",
        requires: tuple[str, ...] = (),
        entry_points: Mapping[str, str] | None = None,
    ) -> str:
        """Write a distribution of one module and return the module's name."""
        module = distribution.replace("-", "_")
        points = {module: module} if entry_points is None else entry_points
        self.folder.joinpath(f"{module}.py").write_text(code, encoding="utf-8")
        info = self.folder / f"{module}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        lines += [f"Requires-Dist: {line}" for line in requires]
        info.joinpath("METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")
        lines = ["[mapping_core]", *(f"{name} = {value}" for name, value in points.items())]
        info.joinpath("entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        importlib.invalidate_caches()
        return module


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Give an empty `Site` that this process, and only it, searches first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("MAPPING_BLOCK", raising=False)
    monkeypatch.delenv("MAPPING_PLUGINS", raising=False)
    yield Site(folder)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


@pytest.fixture
def good_plugin() -> str:
    """Give the source of a plugin that works: a callback named ``quiet``."""
    return GOOD_PLUGIN
