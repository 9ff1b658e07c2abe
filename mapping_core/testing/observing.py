"""What checks of several kinds look at: random states, gradients, equal results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError

from mapping_core.testing.contract import expect
from mapping_core.training.randomness import random_state, undisturbed


def equal(one: Any, other: Any) -> bool:
    """Whether two nests of plain values and tensors are the same, bit for bit."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other) or (one != one and other != other)


@contextmanager
def nothing_drawn(doing: str) -> Iterator[None]:
    """Expect that the global random states of Python, NumPy and torch stay as they are."""
    with undisturbed():
        before = random_state()
        yield
        after = random_state()
    drawn = [name for name in ("python", "numpy", "torch") if not equal(before[name], after[name])]
    expect(not drawn, f"{doing} draws from the global random state of {', '.join(drawn)}")


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Run under another global random state, and put the present one back."""
    with undisturbed():
        torch.manual_seed(seed)
        yield


def all_moved(module: nn.Module) -> None:
    """Expect that a module moved to the device ``meta`` has left no tensor behind in an attribute."""
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            where = f"{path}.{name}" if path else name
            left = isinstance(value, Tensor) and value.device.type != "meta"
            expect(not left, f"its tensor {where} stays behind when it is moved to another device")


def trains_nothing(module: nn.Module) -> None:
    """Expect a module without trainable parameters."""
    own = [name for name, _ in module.named_parameters()]
    expect(not own, f"has parameters of its own: {', '.join(own)}")


def gradient_is_exact(function: Callable[[Tensor], Tensor], latent: Tensor) -> None:
    """Expect the gradient that finite differences give, in float64, at a latent [d]; along random directions."""
    z = latent.detach().double().requires_grad_()
    output = function(z)
    expect(output.requires_grad, "no gradient reaches the latent: its result does not depend on it for autograd")
    try:
        with undisturbed():  # it draws the directions
            torch.autograd.gradcheck(function, (z,), fast_mode=True)
    except GradcheckError as error:
        summary = " ".join(str(error).split())[:200]
        expect(False, f"the gradient is not that of finite differences: {summary}")


def compiles_alike(run: Callable[..., Any], *arguments: Any) -> None:
    """Expect the same result from one compiled graph."""
    import torch._dynamo

    plain = run(*arguments)
    torch._dynamo.reset()
    try:
        # aot_eager: traces what a compiler would get, and needs no compiler on the machine
        compiled = torch.compile(run, backend="aot_eager", fullgraph=True)(*arguments)
    except Exception as error:
        first = str(error).strip().partition("\n")[0]
        expect(False, f"torch.compile(fullgraph=True) fails: {type(error).__name__}: {first}")
        return
    pairs = zip(_leaves(plain), _leaves(compiled), strict=True)
    same = all(torch.allclose(one, two, rtol=1e-4, atol=1e-6) for one, two in pairs)
    expect(same, "compiled, it gives another result")


def _leaves(nest: Any) -> list[Tensor]:
    if isinstance(nest, Tensor):
        return [nest]
    items = nest.values() if isinstance(nest, dict) else nest
    return [leaf for item in items for leaf in _leaves(item)]
