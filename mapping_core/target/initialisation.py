"""How widely a layer's own initialisation spreads its weights: the scale of a mapper's rows.

Read from the kind of module and its shapes, never from the weights, which may be trained. The
rules are those of torch's `reset_parameters`, and of models that declare their own:

- Linear, Conv, ConvTranspose and modules of unknown kind: U(-b, b) with b = 1/sqrt(fan_in),
  fan_in the product of all dimensions but the first, so 1/sqrt(3 fan_in). Bilinear: fan_in is
  its first input's. Recurrent layers: fan_in is the hidden size.
- Embedding, EmbeddingBag: N(0, 1).
- MultiheadAttention: Xavier, sqrt(2 / (fan_in + fan_out)), for the packed projection as one.
- Inside `nn.Transformer`: Xavier for every tensor of two dimensions or more.
- Inside a model with a method `_init_weights` and a number `config.initializer_range`, the
  convention of transformers' `PreTrainedModel`: that number, for all but recurrent layers and
  `MultiheadAttention`. Its `Conv1D` outside such a model: 0.02.

A bias is spread as its weight is: torch draws most biases so, and those that start at 0 in
such a layer are treated alike, since both move what the layer puts out. Parameters of
norms, slopes and scales start as constants: they have no spread.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

_NORMS: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
_RECURRENT = (nn.RNNBase, nn.RNNCellBase)
_CONV1D = ("transformers.pytorch_utils", "Conv1D")  # by name: core does not import transformers


def initial_spread(modules: Mapping[str, nn.Module], name: str, parameter: Tensor) -> float | None:
    """The standard deviation that a parameter is initialised with, None for one that starts as a constant.

    `modules` are the target's by path, `name` is the parameter's.

    >>> layer = nn.Linear(12, 5)
    >>> initial_spread({"": layer}, "bias", layer.bias) == 1 / math.sqrt(3 * 12)
    True
    """
    owner, leaf = _undone(modules, name)
    if leaf is None:
        return None
    module = modules[owner]
    if isinstance(module, _NORMS):
        return None
    if isinstance(module, _RECURRENT):
        return _uniform(module.hidden_size)
    weight = parameter if parameter.ndim >= 2 else _weight_of(module, leaf)
    if weight is None or weight.numel() == 0:
        return None
    for outer in _enclosing(modules, owner):
        if isinstance(outer, nn.Transformer) and parameter.ndim >= 2:
            return _xavier(parameter)
        declared = _declared_range(outer)
        if declared is not None and not isinstance(module, nn.MultiheadAttention):
            return declared
    return _of_module(module, weight)


def _of_module(module: nn.Module, weight: Tensor) -> float:
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return 1.0
    if isinstance(module, nn.Bilinear):
        return _uniform(weight.shape[1])
    if isinstance(module, nn.MultiheadAttention):
        # bias_k and bias_v are drawn from a normal distribution, as widely as Xavier says.
        return _xavier(weight)
    if _CONV1D in {(kind.__module__, kind.__qualname__) for kind in type(module).__mro__}:
        return 0.02
    return _uniform(weight[0].numel())


def _weight_of(module: nn.Module, leaf: str) -> Tensor | None:
    """The weight that a parameter of one dimension goes with."""
    # Where attention's three projections are apart, the query's stands for all.
    names = ("in_proj_weight", "q_proj_weight") if leaf == "in_proj_bias" else ("weight",)
    held = next((held for name in names if (held := _stored(module, name)) is not None), None)
    return held if isinstance(held, Tensor) and held.ndim >= 2 else None


def _stored(module: nn.Module, leaf: str) -> object:
    """What a module holds under a name, or holds it in the shape of; nothing is computed.

    The attribute of a parametrized module computes, and spectral_norm's even writes to its buffers.
    """
    parametrizations = module._modules.get("parametrizations")
    if isinstance(parametrizations, nn.ModuleDict) and leaf in parametrizations:
        originals = parametrizations[leaf]._parameters
        return originals.get("original", originals.get("original1"))
    for name in (leaf, f"{leaf}_orig", f"{leaf}_v"):
        if (held := module._parameters.get(name, vars(module).get(name))) is not None:
            return held
    return None


def _undone(modules: Mapping[str, nn.Module], name: str) -> tuple[str, str | None]:
    """The path of the module that a parameter belongs to, and what it is there, whatever reparametrizes it.

    Of the two halves of weight_norm, of the new kind or the old, the direction is drawn as
    the weight is; the magnitude is nothing that a layer draws (None).
    """
    owner, _, leaf = name.rpartition(".")
    if isinstance(modules[owner], ParametrizationList):
        above, _, tensor = f".{owner}".rpartition(".parametrizations.")
        return above.removeprefix("."), None if leaf == "original0" else tensor
    own = modules[owner]._parameters
    if leaf.endswith("_g") and f"{leaf[:-2]}_v" in own:
        return owner, None
    return owner, leaf


def _enclosing(modules: Mapping[str, nn.Module], path: str) -> Iterator[nn.Module]:
    """The module itself and those around it, from the inside out."""
    while path:
        yield modules[path]
        path = path.rpartition(".")[0]
    yield modules[""]


def _declared_range(module: nn.Module) -> float | None:
    if not callable(getattr(type(module), "_init_weights", None)):
        return None
    declared = getattr(getattr(module, "config", None), "initializer_range", None)
    return declared if isinstance(declared, float) and declared > 0 else None


def _uniform(fan_in: int) -> float:
    return 1.0 / math.sqrt(3.0 * fan_in)


def _xavier(weight: Tensor) -> float:
    field = torch.Size(weight.shape[2:]).numel()
    return math.sqrt(2.0 / ((weight.shape[0] + weight.shape[1]) * field))
