"""P7: names that differ only in dots. Source: packages that register `a.b` as `a_b`, where one overwrites the other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel
from tests import targets


class Alike(nn.Module):
    """Modules, parameters and buffers whose names collide once dots become underscores, or nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Module()
        self.a.b = nn.Linear(3, 3)
        self.a_b = nn.Linear(3, 3)
        self.ab = nn.Linear(3, 3)
        self.a.b_weight = nn.Parameter(torch.randn(3, 3))
        self.a.norm = nn.BatchNorm1d(3)
        self.a_norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.a_norm(self.ab(self.a.norm(self.a_b(self.a.b(x)))))  # type: ignore[operator]
        return hidden @ self.a.b_weight  # type: ignore[operator]


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@pytest.mark.parametrize("options", [{}, {"trained": "a_b"}, {"trained": "a.b"}, {"frozen": "a.b"}, {"lazy": True}])
def test_each_name_has_its_own_weights(strategy: str, options: dict[str, object], tmp_path: Path) -> None:
    """Every parameter and buffer has values of its own: generated, trained, tracked, exported and in the file."""
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)) * 2 + 1
    target = Alike()
    model = targets.moved(MappingModel(target, 30, strategy, buffers="tracked", **options))  # type: ignore[arg-type]
    targets.assert_equals_direct(model, x)
    exported = model.eval().export()
    assert not torch.equal(exported.get_buffer("a.norm.running_mean"), exported.get_buffer("a_norm.running_mean"))
    values = {name: parameter.detach() for name, parameter in exported.named_parameters()}
    for one in ("a.b.weight", "a_b.weight", "ab.weight", "a.b_weight"):
        assert [other for other in values if torch.equal(values[one], values[other])] == [one]
    model.save(tmp_path / "m")
    assert torch.equal(MappingModel.load(tmp_path / "m", Alike()).eval()(x), model(x))


def test_a_pattern_means_one_of_them() -> None:
    """A pattern takes the name it says, and not the one that looks like it."""
    model = MappingModel(Alike(), 30, trained="a.b")
    assert {spec.name for spec in model.layout.trained} == {"a.b.weight", "a.b.bias"}
