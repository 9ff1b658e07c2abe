"""What every mapper promises, of those without a file; that of `trajectory` is in test_mappers.py."""

from __future__ import annotations

from mapping_core.testing import MapperSuite
from mapping_plugin_mappers import Fastfood, Hash, Mlp, Seeded


class TestHash(MapperSuite):
    """The suite, with one number a weight and with four."""

    component = Hash
    configs = (Hash(), Hash(k=4))


class TestFastfood(MapperSuite):
    """The suite."""

    component = Fastfood


class TestSeeded(MapperSuite):
    """The suite."""

    component = Seeded


class TestMlp(MapperSuite):
    """The suite, with the default width and a narrow one."""

    component = Mlp
    configs = (Mlp(), Mlp(hidden=5))
