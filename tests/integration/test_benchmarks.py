"""The benchmarks of accuracy run from their command lines; what they measure takes longer than a test may."""

from __future__ import annotations

import sys

import pytest

from benchmarks import losses


def test_losses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One epoch of one loss on the digits gives a row: name, forward passes that it adds, accuracy."""
    command = ["losses", "--data", "digits", "--epochs", "1", "--seeds", "0", "--only", "+ stability"]
    monkeypatch.setattr(sys, "argv", command)
    losses.main()
    cells = [cell.strip() for cell in capsys.readouterr().out.strip().strip("|").split("|")]
    assert cells[:3] == ["digits", "+ stability", "2"]
    assert 0.0 < float(cells[3]) < 100.0
