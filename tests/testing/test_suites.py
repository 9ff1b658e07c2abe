"""The suites as a plugin author uses them: four lines in a test file, run by pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SUITE = """
from mapping_core import MapperConfig
from mapping_core.builtin import CrossEntropy, Full, Srht
from mapping_core.contexts import MapperContext
from mapping_core.testing import LossSuite, MapperSuite, PhasePolicySuite

class Unseeded(MapperConfig):
    name = "unseeded"
    def build(self, context):
        return Srht().build(MapperContext(in_features=context.in_features, out_features=context.out_features, seed=0))

class TestSrht(MapperSuite):
    component = Srht

class TestConfigs(LossSuite):
    component = CrossEntropy
    configs = (CrossEntropy(), CrossEntropy(label_smoothing=0.1))

class TestExpected(MapperSuite):
    component = Unseeded
    expected_failures = {"seeds_and_streams_differ": "ignores the seed", "imports_no_torch": "is in a test"}

class TestUnexpected(PhasePolicySuite):
    component = Full
    expected_failures = {"transitions_are_legal": "it is not: this check passes"}
"""

MISUSE = {
    "unknown check": (
        "class TestFull(PhasePolicySuite):\n    component = Full\n    expected_failures = {'bilds': 'misspelt'}",
        "expected_failures has no check bilds; there are is_a_frozen_configuration, ",
    ),
    "another kind": ("class TestFull(MapperSuite):\n    component = Full", "TestFull: Full is no MapperConfig"),
}


def pytest_on(folder: Path, text: str, *options: str) -> str:
    """Run pytest on a file with this text, apart from the project's configuration, and return what it prints."""
    folder.joinpath("pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    folder.joinpath("test_author.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *options, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def test_a_suite_in_four_lines(tmp_path: Path) -> None:
    """Each check of each configuration is a test; an expected failure is strict: one that passes is a failure."""
    out = pytest_on(
        tmp_path, SUITE, "-k", "TestConfigs or TestUnexpected or (TestSrht and gain) or (TestExpected and streams)"
    )
    lines = [line for line in out.splitlines() if line.startswith(("PASSED", "FAILED", "XFAIL", "ERROR"))]
    passed = [line for line in lines if line.startswith("PASSED")]
    assert sum("TestConfigs" in line for line in passed) == 2 * 13
    assert any("has_unit_gain-Srht()" in line for line in passed)
    assert any("label_smoothing=0.1" in line for line in passed)
    (expected,) = [line for line in lines if line.startswith("XFAIL")]
    assert "seeds_and_streams_differ-Unseeded()" in expected
    assert expected.endswith("ignores the seed")
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    assert len(failed) == 1
    assert "[XPASS(strict)]" in out
    assert "TestUnexpected::test_contract[transitions_are_legal-Full()]" in failed[0]


@pytest.mark.parametrize("name", MISUSE)
def test_a_suite_misused(name: str, tmp_path: Path) -> None:
    """A check that does not exist, or a component of another kind, is an error that says so."""
    code, message = MISUSE[name]
    head = "from mapping_core.testing import *\nfrom mapping_core.builtin import Full\n"
    out = " ".join(pytest_on(tmp_path, head + code).split())
    assert message in out
    assert re.search(r"1 error", out)
