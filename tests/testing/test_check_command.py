"""`mapping check`: the table, the messages and the exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from mapping_core import cli

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Site

POLICY = '''"""A policy, right or wrong."""
from attrs import define
from mapping_core import PhasePolicyConfig, hookimpl

@define(frozen=True, kw_only=True)
class Steady(PhasePolicyConfig):
    name = "steady"

    def build(self, context):
        from mapping_core.builtin.phase_policies.full import FullPolicy

        return FullPolicy()

@hookimpl
def mapping_phase_policies():
    return [Steady]
'''

WRONG = POLICY.replace("return FullPolicy()", "return object()")

NEEDS_SETTINGS = POLICY.replace('name = "steady"', 'name = "steady"\n    steps: int')


def check(plugin: str) -> tuple[int, str, str]:
    """Run the command in this process; return exit code, stdout and stderr."""
    result = CliRunner().invoke(cli.main, ["check", plugin])
    return result.exit_code, result.stdout, result.stderr


def test_a_right_plugin(site: Site) -> None:
    """A distribution that keeps its contract passes with 0, and each check stands in the table."""
    site.add("steady-plugin", POLICY)
    code, out, err = check("Steady_Plugin")
    assert (code, err) == (0, "")
    assert "phase_policy:steady" in out
    assert "transitions_are_legal" in out
    assert "10 passed, 0 failed, 0 refused" in out


def test_a_wrong_plugin(site: Site) -> None:
    """One that does not exits with 1 and says what was found, what the contract is and how to meet it."""
    site.add("steady-plugin", WRONG)
    code, out, _ = check("steady-plugin")
    assert code == 1
    assert "phase_policy:steady builds: failed: Steady(): build() returned object" in out
    assert "  contract: `build(context)` returns a `PhasePolicy`" in out
    assert "  to meet it: return a PhasePolicy from build()" in out


def test_a_module_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module beside the author is checked as it is, before it is packaged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    tmp_path.joinpath("steady_module_here.py").write_text(POLICY, encoding="utf-8")
    code, out, _ = check("steady_module_here")
    assert code == 0, out
    sys.modules.pop("steady_module_here")


def test_a_component_without_defaults(site: Site) -> None:
    """What has no defaults is said to be unchecked, not passed over."""
    site.add("steady-plugin", NEEDS_SETTINGS)
    code, out, _ = check("steady-plugin")
    assert code == 0
    assert "has_defaults: refused: needs settings: " in out
    assert "'steps'" in out


def test_what_cannot_be_checked(site: Site) -> None:
    """A plugin that did not load, a name nobody has, and a module that cannot be imported are errors in one line."""
    site.add("broken-plugin", "import not_there_at_all")
    code, _, err = check("broken-plugin")
    assert code == 2
    assert "ModuleNotFoundError: No module named 'not_there_at_all'" in err
    code, _, err = check("mapping-plugin-slwt")
    assert code == 2
    assert "no plugin 'mapping-plugin-slwt' is installed" in err
    assert check("mapping_plugin_of_nobody")[2].startswith(
        "mapping: error: 'mapping_plugin_of_nobody' is neither an installed plugin nor a module"
    )
    assert "did you mean 'mapping-core'?" in check("mapping-cor")[2]
