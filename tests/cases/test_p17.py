"""P17: segmentation. Source: packages whose loss and accuracy take the last axis for the classes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from mapping_core import LossError, MappingModel
from mapping_core.builtin.losses.cross_entropy import CrossEntropyLoss
from mapping_core.interfaces.loss import LossStep
from tests import targets

CLASSES = 3


def network() -> nn.Sequential:
    """Return a small fully convolutional network; [N, 1, H, W] -> [N, 3, H, W]."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, CLASSES, 1))


def images(count: int = 8) -> tuple[Tensor, Tensor]:
    """Images [N, 1, 6, 5], and a mask [N, 6, 5] of what each pixel's brightness is."""
    x = torch.randn(count, 1, 6, 5, generator=torch.Generator().manual_seed(1))
    return x, (x[:, 0] > -0.4).long() + (x[:, 0] > 0.4).long()


def step(logits: Tensor, mask: Tensor) -> LossStep:
    """Return what a loss is given."""
    return LossStep(predictions=logits, targets=mask, latents={}, evaluate=lambda latents: logits)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_over_the_class_axis(dtype: torch.dtype) -> None:
    """Loss and accuracy are over axis 1, pixel by pixel, whatever integers the mask is made of."""
    logits = torch.randn(4, CLASSES, 6, 5)
    mask = torch.randint(0, CLASSES, (4, 6, 5))
    given = step(logits, mask.to(dtype))
    loss = CrossEntropyLoss()
    by_hand = functional.cross_entropy(logits.permute(0, 2, 3, 1).reshape(-1, CLASSES), mask.reshape(-1))
    torch.testing.assert_close(loss(given), by_hand)
    hits = logits.permute(0, 2, 3, 1).argmax(-1) == mask
    torch.testing.assert_close(loss.metrics(given)["accuracy"], hits.double().mean().item())
    assert loss.items(given) == 4 * 6 * 5


@pytest.mark.parametrize(("ignore_index", "dtype"), [(-100, torch.int64), (255, torch.uint8), (0, torch.int64)])
def test_ignored_pixels(ignore_index: int, dtype: torch.dtype) -> None:
    """Ignored pixels count neither in the loss, nor in the accuracy, nor in the number of items."""
    logits = torch.randn(4, CLASSES, 6, 5, requires_grad=True)
    mask = torch.randint(1, CLASSES, (4, 6, 5)).to(dtype)
    ignored = torch.rand(4, 6, 5, generator=torch.Generator().manual_seed(0)) < 0.3
    mask[ignored] = ignore_index
    given = step(logits, mask)
    loss = CrossEntropyLoss(ignore_index=ignore_index)
    kept = logits.permute(0, 2, 3, 1)[~ignored]
    torch.testing.assert_close(loss(given), functional.cross_entropy(kept, mask[~ignored].long()))
    accuracy = (kept.argmax(-1) == mask[~ignored]).double().mean().item()
    torch.testing.assert_close(loss.metrics(given)["accuracy"], accuracy)
    assert loss.items(given) == int((~ignored).sum())
    (gradient,) = torch.autograd.grad(loss(given), logits)
    assert not gradient.permute(0, 2, 3, 1)[ignored].any()


def test_training_and_validation() -> None:
    """A mapped network learns to segment; a batch that is ignored as a whole makes no NaN anywhere."""
    x, mask = images()
    mask[:, 0] = -100
    batches = [(x[:4], mask[:4]), (x[4:], torch.full_like(mask[4:], -100)), (x[4:], mask[4:])]
    model = MappingModel(network(), 40)
    history = targets.trainer_of(model, batches, batches, max_epochs=20).fit()
    assert history["train_loss"][-1] < history["train_loss"][0]
    assert history["val_accuracy"][-1] > 0.6
    assert all(value == value for name in ("train_loss", "val_loss", "val_accuracy") for value in history[name])
    with torch.no_grad():
        counted = mask != -100
        by_hand = (model.eval()(x).argmax(1) == mask)[counted].float().mean()
    torch.testing.assert_close(history["val_accuracy"][-1], float(by_hand))


@pytest.mark.parametrize("shape", [(8, 1, 6, 5), (8, 6), (8, 5, 6)])
def test_masks_that_do_not_fit(shape: tuple[int, ...]) -> None:
    """A mask of another shape is refused with both shapes instead of being broadcast."""
    x, _ = images()
    with pytest.raises(LossError, match=r"needs logits \[N, C, ...\] and integer targets.*\[8, 3, 6, 5\]"):
        targets.trainer_of(MappingModel(network(), 40), [(x, torch.zeros(shape, dtype=torch.int64))]).fit()
