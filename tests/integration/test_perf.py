"""The command that measures performance."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.perf.__main__ import OF_NETWORKS, ONCE, main

MAPPED = ["slvt 512", "layerwise 512"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the folder of a quick run of everything on a tiny network."""
    folder = tmp_path_factory.mktemp("perf")
    main(["--quick", "--network", "digits", "--threads", "1", "--out", str(folder)])
    return folder


@pytest.fixture
def results(folder: Path) -> dict[str, Any]:
    """Give its numbers."""
    read: dict[str, Any] = json.loads(folder.joinpath("performance.json").read_text("utf-8"))
    return read


def rows(results: dict[str, Any], part: str) -> dict[str, dict[str, Any]]:
    """Return a part's rows by method."""
    found = results["networks"]["digits"][part] if part in OF_NETWORKS else results["once"][part]
    return {row["method"]: row for row in found}


@pytest.mark.parametrize(("part", "reference"), [("step", "direct, fused Adam"), ("mapping", "copy_")])
def test_times(results: dict[str, Any], part: str, reference: str) -> None:
    """Every method is measured in every round, and medians and ratios are those of the samples."""
    measured = rows(results, part)
    assert measured.keys() >= {reference, *MAPPED}
    base = measured[reference]["samples_ms"]
    for row in measured.values():
        assert len(row["samples_ms"]) == 2
        assert row["ms"] == pytest.approx(statistics.median(row["samples_ms"]), rel=0.1, abs=1e-3)
        ratios = [each / other for each, other in zip(row["samples_ms"], base, strict=True)]
        assert row["ratio"] == pytest.approx(statistics.median(ratios), rel=0.1)
        assert row["ratio_quartiles"][0] <= row["ratio"] <= row["ratio_quartiles"][1]
        assert row["ms"] > 0
    assert measured[reference]["ratio"] == 1


def test_direct_optimisers(results: dict[str, Any]) -> None:
    """Direct training is measured with three optimisers, in time and in memory."""
    for part in ("step", "memory"):
        assert {f"direct, {name}" for name in ("fused Adam", "plain Adam", "SGD")} < rows(results, part).keys()
    assert all(row["peak_bytes"] > 0 for row in rows(results, "memory").values())


def test_sizes_and_traffic(results: dict[str, Any]) -> None:
    """Bytes are those that the latent says: in the file, and on the wire, where direct training sends its weights."""
    sizes, traffic = rows(results, "sizes"), rows(results, "ddp")
    assert sizes["direct"]["weights"] == 38_282
    assert traffic["direct"]["gradient_bytes"] == 4 * 38_282
    for name in MAPPED:
        assert 4 * 512 < sizes[name]["file_bytes"] < 4 * 512 + 4096
        assert sizes[name]["build_ms"] > 0
        assert sizes[name]["frozen_bytes"] == pytest.approx(sizes[name]["frozen_bytes_a_weight"] * 38_282)
        assert traffic[name]["gradient_bytes"] == traffic[name]["start_bytes"] == 4 * 512
        assert traffic[name]["buffer_bytes"] == 0


def test_once(results: dict[str, Any]) -> None:
    """Callbacks are measured for three numbers of them, import and discovery without torch."""
    hooks = rows(results, "hooks")
    assert [*hooks] == ["no callback", "one callback", "ten callbacks"]
    assert all(row["us"] > 0 for row in hooks.values())
    assert [*rows(results, "imports")] == ["import mapping_core", "Registry.discover()", "import torch, after that"]
    assert all(row["ms"] > 0 for row in rows(results, "imports").values())


def test_page(folder: Path, results: dict[str, Any]) -> None:
    """The page has a table for each part, and says when and with what it was measured."""
    text = folder.joinpath("performance.md").read_text("utf-8")
    assert text.count("\n| --- |") == len(OF_NETWORKS) + len(ONCE)
    assert text.count("\n## ") == len(OF_NETWORKS) + len(ONCE)
    assert f"Measured on {results['machine']['date']}" in text


def test_a_part_replaces_its_own(folder: Path, results: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A part that is run again replaces its numbers and leaves the others, unless they are of another machine."""
    main(["--quick", "--only", "hooks", "--threads", "1", "--out", str(folder)])
    path = folder / "performance.json"
    again = json.loads(path.read_text("utf-8"))
    assert again["networks"] == results["networks"]
    assert again["once"]["imports"] == results["once"]["imports"]
    assert again["once"]["hooks"] != results["once"]["hooks"]
    path.write_text(json.dumps({**again, "machine": {**again["machine"], "date": "1999-01-01"}}))
    main(["--quick", "--only", "hooks", "--threads", "1", "--out", str(folder)])
    alone = json.loads(path.read_text("utf-8"))
    assert (alone["networks"], list(alone["once"])) == ({}, ["hooks"])
    path.write_text(json.dumps(results))
    capsys.readouterr()
    main(["--quick", "--only", "hooks", "--threads", "1"])
    assert "## Callbacks" in capsys.readouterr().out
