"""The `mapping` command itself, and `mapping plugins`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

import mapping_core
from mapping_core import cli
from mapping_core.commands import plugins
from mapping_core.errors import ConfigError

if TYPE_CHECKING:
    from tests.conftest import Site


def mapping(*arguments: str) -> tuple[int, str, str]:
    """Run the command in this process; return exit code, stdout and stderr."""
    result = CliRunner().invoke(cli.main, arguments)
    return result.exit_code, result.stdout, result.stderr


def test_version() -> None:
    """The version is printed in one line."""
    assert mapping("--version") == (0, f"mapping {mapping_core.__version__}\n", "")


def test_help_lists_every_command() -> None:
    """Each command the table in cli.py names exists, has a help line, and takes --traceback."""
    assert "plugins" in cli.COMMANDS
    code, out, _ = mapping("--help")
    assert code == 0
    for name in cli.COMMANDS:
        assert f"\n  {name} " in out
        code, help_text, _ = mapping(name, "--help")
        assert code == 0
        assert help_text.count("--traceback") == 1


def test_unknown_command() -> None:
    """A command that does not exist is a usage error."""
    code, _, err = mapping("plugin")
    assert code == 2
    assert "No such command 'plugin'" in err


def test_json_lists_components_and_plugins(site: Site, good_plugin: str) -> None:
    """The JSON names each plugin with its distribution and each component by kind."""
    module = site.add("third-party", good_plugin, version="2.5")
    code, out, err = mapping("plugins", "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    assert data["problems"] == []
    assert {"name": "quiet", "distribution": "third-party", "version": "2.5", "plugin": module} in data["components"][
        "callback"
    ]
    assert [item["components"] for item in data["plugins"] if item["distribution"] == "third-party"] == [
        ["callback:quiet"]
    ]


def test_what_a_plugin_prints(site: Site, good_plugin: str) -> None:
    """A plugin that prints while it is imported does so on stderr, and the JSON stays JSON."""
    site.add("third-party", f"print('hello')\n{good_plugin}")
    code, out, err = mapping("plugins", "--json")
    assert (code, err) == (0, "hello\n")
    assert json.loads(out)["problems"] == []


def test_broken_plugin_in_json_and_table(site: Site, good_plugin: str) -> None:
    """A broken plugin is shown with its cause on stdout, and only --strict makes that an error."""
    site.add("third-party", good_plugin)
    site.add("bad-plugin", "raise ValueError('[no] luck')")
    code, out, err = mapping("plugins", "--json")
    assert (code, err) == (0, "")
    data = json.loads(out)
    (problem,) = data["problems"]
    assert (problem["distribution"], problem["cause"]) == ("bad-plugin", "ValueError: [no] luck")
    assert "quiet" in [item["name"] for item in data["components"]["callback"]]
    code, out, _ = mapping("plugins")
    assert code == 0
    assert "did not load: plugin 'bad_plugin' of bad-plugin 1.0: ValueError: [no] luck" in out
    assert mapping("plugins", "--strict")[0] == 1
    assert mapping("plugins", "--json", "--strict")[0] == 1


def test_strict_without_a_problem(site: Site, good_plugin: str) -> None:
    """With nothing broken --strict exits with 0."""
    site.add("third-party", good_plugin)
    assert mapping("plugins", "--strict")[0] == 0


def test_table_marks_what_is_ambiguous_or_kept_out(
    site: Site, good_plugin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table says how to write an ambiguous name, and which distributions were kept out."""
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("first-one", "second-one", "third-one"):
        site.add(name, good_plugin)
    monkeypatch.setenv("MAPPING_BLOCK", "third-one")
    code, out, _ = mapping("plugins")
    assert code == 0
    assert "quiet (ambiguous: write first-one:quiet)" in out
    assert "quiet (ambiguous: write second-one:quiet)" in out
    assert "kept out: third-one" in out


def test_error_is_one_line_and_exit_code_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the package raises on purpose ends in one line; --traceback, before or after the name, shows more."""

    def fail(*_: object) -> None:
        raise ConfigError("expected an integer,\n got '3'", path="trainer.max_epochs")

    monkeypatch.setattr(plugins, "report", fail)
    line = "mapping: error: trainer.max_epochs: expected an integer, got '3'\n"
    assert mapping("plugins", "--json") == (2, "", line)
    for arguments in (("--traceback", "plugins", "--json"), ("plugins", "--json", "--traceback")):
        code, out, err = mapping(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("Traceback (most recent call last):")
        assert err.endswith(line)


def test_every_command_module_has_a_command() -> None:
    """The lazy group returns click commands for its own names and None for others."""
    context = click.Context(cli.main)
    assert all(isinstance(cli.main.get_command(context, name), click.Command) for name in cli.COMMANDS)
    assert cli.main.get_command(context, "nothing") is None


def test_plugins_is_quick_and_needs_no_torch(site: Site) -> None:
    """As a process of its own, with torch made impossible to import, it answers in under a second."""
    site.folder.joinpath("torch.py").write_text("raise ImportError('torch was imported')", encoding="utf-8")
    code = "from mapping_core.cli import main; main(['plugins', '--json'])"
    environment = {**os.environ, "PYTHONPATH": str(site.folder)}
    seconds = []
    for _ in range(3):  # the best of three, since a test machine has other work too
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1.0
    data = json.loads(done.stdout)
    assert data["problems"] == []
    assert "srht" in [item["name"] for item in data["components"]["mapper"]]
