"""D28: a plugin distribution that is installed but broken."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from mapping_core import AmbiguousComponentError, PluginError, Registry

if TYPE_CHECKING:
    from tests.conftest import Site


def test_stale_entry_point(site: Site, good_plugin: str, caplog: pytest.LogCaptureFixture) -> None:
    """Sources: datachain issue 1904 and llm issue 1351, where one stale entry point took the whole program down."""
    site.add("good-plugin", good_plugin)
    site.add("stale-plugin", "from mapping_core import a_name_of_last_year")
    site.add("gone-plugin", "", entry_points={"gone": "gone_plugin_renamed:register"})
    with caplog.at_level(logging.WARNING, logger="mapping_core"):
        registry = Registry.discover()
    assert registry.callbacks.get("quiet").name == "quiet"
    assert {problem.distribution for problem in registry.problems} == {"gone-plugin", "stale-plugin"}
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any("plugin 'stale_plugin' of stale-plugin 1.0: ImportError" in text for text in warnings)
    assert any("plugin 'gone' of gone-plugin 1.0: ModuleNotFoundError" in text for text in warnings)
    with pytest.raises(PluginError, match="gone-plugin"):
        Registry.discover(strict=True)


def test_two_distributions_with_one_name(site: Site, good_plugin: str) -> None:
    """Source: the same reports; a renamed distribution left beside its successor supplies every name twice."""
    site.add("plugin-old", good_plugin)
    site.add("plugin-new", good_plugin)
    registry = Registry.discover(strict=True)
    with pytest.raises(AmbiguousComponentError, match="'plugin-new:quiet' or 'plugin-old:quiet'"):
        registry.callbacks.get("quiet")
