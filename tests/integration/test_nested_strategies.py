"""Low-rank factors, pruning and divisions of the latent together: every sensible order trains, saves and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from mapping_core import CallbackConfig, ConfigError, GeneratorConfig, MappingModel, MappingTrainer
from mapping_core.reference.models import CNN2
from mapping_plugin_layerwise import Grouped, Layerwise
from mapping_plugin_lrd import Lrd, factorize
from mapping_plugin_modulation import Finetune
from mapping_plugin_pruning import Pruned, Pruning, kept, prune
from mapping_plugin_quantize import Quantized, Quantizing


def network() -> nn.Sequential:
    """A convolution, a norm and two linear layers; [N, 1, 8, 8] -> [N, 3]."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(3),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 3),
    )


STRATEGIES: dict[str, GeneratorConfig] = {
    "lrd of layerwise": Lrd(rank=4, strategy=Layerwise()),
    "lrd of layerwise sqrt": Lrd(rank=4, strategy=Layerwise(budget="sqrt")),
    "lrd of grouped": Lrd(rank=4, strategy=Grouped(groups={"left": ("*.u",), "right": ("*.v",), "rest": ("*",)})),
    "pruned layerwise": Pruned(strategy="layerwise"),
    "pruned lrd of layerwise": Pruned(strategy=Lrd(rank=4, strategy="layerwise")),
    "pruned channels of lrd": Pruned(method="channels", strategy="lrd"),
    "lrd of pruned layerwise": Lrd(rank=4, strategy=Pruned(strategy="layerwise")),
    "pruned deltas": Pruned(strategy=Finetune(kind="deltas")),
    "pruned gates": Pruned(strategy=Finetune()),
    "quantized layerwise": Quantized(strategy="layerwise", bits=3),
    "quantized pruned lrd": Quantized(strategy=Pruned(strategy="lrd")),
    "pruned quantized layerwise": Pruned(strategy=Quantized(strategy="layerwise")),
    "lrd of quantized": Lrd(rank=4, strategy=Quantized(bits=5)),
}


def loader() -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Two batches of noise, classed by where it is brightest."""
    x = torch.randn(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = x.flatten(1)[:, :60].reshape(64, 3, 20).mean(2).argmax(1)
    return list(zip(torch.split(x, 32), torch.split(y, 32), strict=True))


OPTIONS: list[dict[str, Any]] = [{}, {"base": "zero"}, {"modulation": "gain"}, {"mapper": "hash"}]
#: Gates multiply the target's weights: they take no modulation, and 0 stays 0.
COMBINATIONS = [(name, options) for name in STRATEGIES for options in OPTIONS if name != "pruned gates" or not options]


@pytest.mark.parametrize(("name", "options"), COMBINATIONS, ids=str)
def test_trains_saves_and_exports(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    """A few steps change what is generated; file and export then give the same outputs."""
    model = MappingModel(network(), 120, STRATEGIES[name], **options)
    callbacks: list[CallbackConfig] = []
    callbacks += [Pruning(keep=0.4, begin=0.2, end=0.8, every=2)] if "pruned" in name else []
    callbacks += [Quantizing()] if "quantized" in name else []
    trainer = MappingTrainer(
        model, loader(), max_epochs=5, callbacks=callbacks, seed=0, accelerator="cpu", progress=False
    )
    trainer.fit()
    model.eval()
    x = loader()[0][0]
    with torch.no_grad():
        output = model(x)
        assert not torch.equal(output, network().eval()(x))
        torch.testing.assert_close(model.export()(x), output)
        model.save(tmp_path / "m")
        loaded = MappingModel.load(tmp_path / "m", network()).eval()
        assert torch.equal(loaded(x), output)
        assert ("packed.codes" in safetensors.torch.load_file(tmp_path / "m")) == ("quantized" in name)
    assert loaded.strategy == model.strategy
    assert sum(parameter.numel() for parameter in model.parameters()) == 120
    if "pruned" in name:
        assert kept(loaded) == kept(model) < 0.9 * sum(spec.numel for spec in model.layout.mapped)


def test_the_paper_s_counts() -> None:
    """SLVT + LRD trains 1,456 numbers, layer-wise + LRD and + pruning 2,688 each; direct and kept numbers fit too."""
    low_rank = Lrd(rank=32, layers=("7",), strategy="slvt")
    layers = Lrd(rank=32, layers=("7",), strategy="layerwise")
    for numbers, strategy in ((1456, low_rank), (2688, layers), (2688, Pruned(strategy="layerwise"))):
        model = MappingModel(CNN2(), numbers, strategy)
        assert sum(parameter.numel() for parameter in model.parameters()) == numbers
    assert sum(parameter.numel() for parameter in factorize(CNN2(), rank=32, layers="7").parameters()) == 35_914
    model = MappingModel(CNN2(), 2688, Pruned(strategy=layers))
    prune(model, 0.1)
    assert kept(model) == 10_862


def test_gates_cannot_move_factors() -> None:
    """Gates multiply their base, and U starts at 0: such a model could not learn, and is refused when built."""
    with pytest.raises(ConfigError, match=r"'finetune' inside it does not move U, which starts at 0"):
        MappingModel(network(), 60, Lrd(rank=4, strategy=Finetune()))
