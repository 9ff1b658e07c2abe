"""The task losses of core, on every form of prediction and target."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from mapping_core import Loss, LossError, Registry
from mapping_core.contexts import LossContext
from mapping_core.interfaces.loss import LossStep
from tests import targets


def build(loss: object) -> Loss:
    """Return a loss by its name or table."""
    return Registry.discover().resolve("loss", loss).build(LossContext(model=targets.mlp()))  # type: ignore[no-any-return]


def step(predictions: Any, targets_: Any) -> LossStep:
    """Return the step of a model without latents."""
    return LossStep(predictions=predictions, targets=targets_, latents={}, evaluate=lambda latents: None)


LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 1.0], [4.0, 0.0, 0.0]])
CLASSES = torch.tensor([0, 1, 2, 1])


def test_cross_entropy_and_accuracy() -> None:
    """Loss, items and accuracy are those of the definition."""
    loss = build("cross_entropy")
    given = step(LOGITS, CLASSES)
    expected = -(LOGITS.log_softmax(1)[range(4), CLASSES]).mean()
    torch.testing.assert_close(loss(given), expected)
    assert loss.items(given) == 4
    assert loss.metrics(given)["accuracy"] == 0.75


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool])
def test_any_integer_targets(dtype: torch.dtype) -> None:
    """Integer targets of any width, and booleans, are classes."""
    classes = torch.tensor([0, 1, 0, 1]).to(dtype)
    expected = functional.cross_entropy(LOGITS, classes.long())
    assert torch.equal(build("auto")(step(LOGITS, classes)), expected)


def test_segmentation_with_ignored_pixels() -> None:
    """Logits [N, C, H, W] with masks [N, H, W] score over the class axis; ignored pixels count nowhere."""
    logits = torch.randn(2, 3, 4, 5)
    masks = logits.argmax(1)
    masks[0, 0, 0] = (masks[0, 0, 0] + 1) % 3
    masks[1] = 255
    loss = build({"type": "cross_entropy", "ignore_index": 255})
    given = step(logits, masks.to(torch.uint8))
    alone = functional.cross_entropy(logits[:1], masks[:1])
    torch.testing.assert_close(loss(given), alone)
    assert loss.items(given) == 20
    torch.testing.assert_close(loss.metrics(given)["accuracy"], 19 / 20)


def test_label_smoothing() -> None:
    """The smoothing is torch's; a share outside [0, 1) is refused."""
    expected = functional.cross_entropy(LOGITS, CLASSES, label_smoothing=0.2)
    assert torch.equal(build({"type": "cross_entropy", "label_smoothing": 0.2})(step(LOGITS, CLASSES)), expected)
    with pytest.raises(ValueError, match="label_smoothing: must be < 1"):
        build({"type": "cross_entropy", "label_smoothing": 1.0})


def test_mse() -> None:
    """The mean over all elements; an item is a sample, a target without dimensions is one."""
    loss = build("mse")
    given = step(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.0], [3.0, 2.0]]))
    assert loss(given) == 2.0
    assert loss.items(given) == 2
    assert loss.items(step(torch.tensor(1.0), torch.tensor(2.0))) == 1
    assert not loss.metrics(given)


def test_mse_takes_the_dtype_of_the_predictions() -> None:
    """Targets of another floating or an integer type are compared in the predictions' type."""
    loss = build("mse")
    made = loss(step(torch.zeros(3), torch.ones(3, dtype=torch.float64)))
    assert (made.dtype, float(made)) == (torch.float32, 1.0)
    assert loss(step(torch.zeros(3), torch.ones(3, dtype=torch.int64))) == 1.0


def test_auto_looks_at_the_targets() -> None:
    """Integer targets mean cross-entropy with accuracy, floating ones the squared error without."""
    loss = build("auto")
    classify, regress = step(LOGITS, CLASSES), step(LOGITS, torch.zeros_like(LOGITS))
    assert torch.equal(loss(classify), build("cross_entropy")(classify))
    assert set(loss.metrics(classify)) == {"accuracy"}
    assert torch.equal(loss(regress), build("mse")(regress))
    assert not loss.metrics(regress)
    assert loss.items(regress) == 4


@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: {"hidden": torch.zeros(1), "logits": t},
        lambda t: OrderedDict(loss=None, prediction=t),
        lambda t: {"logits": None, "out": t},
        lambda t: (t, torch.zeros(2)),
        lambda t: [t],
        lambda t: ((t, None), {"a": 1}),
        lambda t: [{"output": t}],
    ],
)
def test_nested_outputs(wrap: Any) -> None:
    """The scored tensor is found in mappings, sequences and nests of both."""
    given = step(wrap(LOGITS), CLASSES)
    loss = build("auto")
    assert torch.equal(loss(given), functional.cross_entropy(LOGITS, CLASSES))
    assert loss.metrics(given)["accuracy"] == 0.75


@pytest.mark.parametrize(
    ("loss", "predictions", "given", "message"),
    [
        ("auto", {"hidden": LOGITS}, CLASSES, "none of logits, .* which has hidden: pass a loss of your own"),
        ("mse", "text", LOGITS, "'mse' cannot score an output of type str"),
        ("mse", (), LOGITS, "cannot score an output of type tuple"),
        ("auto", LOGITS, [0, 1], "'auto' needs targets as a tensor, the batch gave list"),
        ("cross_entropy", LOGITS, None, "'cross_entropy' needs targets as a tensor, the batch gave NoneType"),
        ("cross_entropy", LOGITS, CLASSES[:3], r"got logits \[4, 3\] and int64 targets \[3\]"),
        ("cross_entropy", LOGITS[0], CLASSES, r"logits \[3\]"),
        ("cross_entropy", LOGITS, CLASSES.float(), r"float32 targets \[4\]"),
        ("mse", torch.zeros(4, 1), torch.zeros(4), r"one shape, got \[4, 1\] and \[4\]"),
    ],
)
def test_what_cannot_be_scored(loss: str, predictions: Any, given: Any, message: str) -> None:
    """Shapes and types that do not fit are refused with both, never broadcast."""
    with pytest.raises(LossError, match=message):
        build(loss)(step(predictions, given))


def test_gradient_reaches_the_predictions() -> None:
    """Each loss is differentiable, to finite differences."""
    logits: Tensor = LOGITS.double().requires_grad_()
    assert torch.autograd.gradcheck(lambda p: build("cross_entropy")(step(p, CLASSES)), logits)
    assert torch.autograd.gradcheck(lambda p: build("mse")(step(p, torch.ones(4, 3))), logits)
