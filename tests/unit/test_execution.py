"""Skeletons: a target without its weights, executed under weights from outside."""

from __future__ import annotations

import copy
import threading

import pytest
import torch
from torch import Tensor, nn

from mapping_core import MappingModel, TargetError
from mapping_core.target import execution
from mapping_core.target.tensors import TensorTree
from tests import targets


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters and buffers by all their names."""
    return {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }


@pytest.mark.parametrize("case", targets.CASES, ids=lambda case: case.name)
def test_skeleton_has_structure_and_no_weights(case: targets.Case) -> None:
    """A skeleton keeps names, shapes, dtypes, ties, flags and modes, and holds no memory."""
    target = case.make()
    target.register_forward_hook(lambda *_: None)
    skeleton = execution.skeleton_of(target)
    own, copied = tensors_of(target), tensors_of(skeleton)
    assert list(own) == list(copied)
    for name, tensor in own.items():
        assert copied[name].is_meta
        assert (copied[name].shape, copied[name].dtype) == (tensor.shape, tensor.dtype)
        assert copied[name].requires_grad == tensor.requires_grad
        assert type(copied[name]) is type(tensor)
        assert not tensor.is_meta
    assert len({id(t) for t in copied.values()}) == len({id(t) for t in own.values()})
    assert [m.training for m in skeleton.modules()] == [m.training for m in target.modules()]


@pytest.mark.parametrize("case", targets.CASES, ids=lambda case: case.name)
def test_call_under_other_weights(case: targets.Case) -> None:
    """A skeleton under another module's tensors gives that module's output."""
    target, other = case.make().eval(), case.make().eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    skeleton = execution.skeleton_of(target)
    x = case.inputs()
    assert torch.equal(execution.call(skeleton, tensors_of(other), (x,), {}), other(x))
    assert not torch.equal(other(x), target(x))
    assert all(tensor.is_meta for tensor in tensors_of(skeleton).values())


def test_filled_shares_nothing() -> None:
    """A filled skeleton is a plain module with storage of its own, and its ties are ties."""
    target = targets.Tied()
    made = execution.filled(execution.skeleton_of(target), tensors_of(target))
    assert type(made) is targets.Tied
    assert made.output.weight is made.embedding.weight
    assert torch.equal(made.embedding.weight, target.embedding.weight)
    assert not {t.data_ptr() for t in tensors_of(made).values()} & {t.data_ptr() for t in tensors_of(target).values()}


def test_what_cannot_be_copied() -> None:
    """A target that deepcopy refuses is refused by name, with the reason."""
    target = targets.mlp()
    target.lock = threading.Lock()  # type: ignore[assignment]
    with pytest.raises(TargetError, match=r"Sequential cannot be copied \(TypeError: cannot pickle '_thread.lock'"):
        execution.skeleton_of(target)
    with pytest.raises(TargetError, match="cannot be copied"):
        MappingModel(target, 16)


class Named(nn.Module):
    """Positional and keyword inputs, and a nested output."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Tensor, *, mask: Tensor, scale: float = 1.0) -> dict[str, object]:
        hidden = self.linear(x) * mask
        return {"logits": hidden * scale, "extra": (hidden, [scale])}


def test_any_inputs_and_outputs() -> None:
    """Arguments pass through as they are, and the output is the target's own object."""
    model = MappingModel(Named(), 8, "slvt")
    x, mask = torch.randn(2, 6), torch.ones(3)
    out = model(x, mask=mask, scale=2.0)
    assert list(out) == ["logits", "extra"]
    assert out["extra"][1] == [2.0]
    assert torch.equal(out["logits"], 2 * out["extra"][0])
    with pytest.raises(TypeError, match="mask"):
        model(x)


def test_tensor_tree_keeps_names_apart_and_moves() -> None:
    """Names with and without dots do not collide, and `.to()` reaches what `as_dict` gives."""
    tree = TensorTree({"a.b": torch.ones(2), "a_b": torch.zeros(3)}, persistent=True)
    assert set(tree.state_dict()) == {"a.b", "a_b"}
    assert {name: tensor.numel() for name, tensor in tree.as_dict().items()} == {"a.b": 2, "a_b": 3}
    assert {tensor.dtype for tensor in tree.double().as_dict().values()} == {torch.float64}
    kept = TensorTree({"a.b": torch.ones(2)}, persistent=False)
    kept.put("a.b", torch.zeros(2))
    assert [tensor.dtype for tensor in kept.double().as_dict().values()] == [torch.float64]
    assert not [*kept.state_dict(), *kept.buffers(), *kept.parameters()]
    assert not copy.deepcopy(kept).half().as_dict()["a.b"].any()
    assert kept.as_dict()["a.b"].dtype == torch.float64


def test_a_tensor_tree_takes_any_name() -> None:
    """Names that the tree itself uses for something, anywhere in the path, are a target's like any other."""
    own = sorted(name for name in {*dir(TensorTree({}, persistent=True)), "_slots"} if "." not in name)
    names = [*own, *(f"{name}.{name}" for name in own)]
    kept = {name: torch.zeros(1) for name in names if "." in name}
    kept |= {name: nn.Parameter(torch.zeros(1)) for name in ("a.as_dict", "a.forward", "b")}
    tree = TensorTree(kept, persistent=True)
    assert tree.as_dict().keys() == kept.keys() == tree.state_dict().keys()
    assert set(TensorTree({"as_dict": torch.zeros(1)}, persistent=True).double().as_dict()) == {"as_dict"}
