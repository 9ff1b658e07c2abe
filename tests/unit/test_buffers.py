"""The buffer policy: which statistics may change, and that nothing else does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from mapping_core import ConfigError, MappingModel, TargetError
from mapping_core.target.buffers import plan_buffers
from tests import targets

STATISTICS = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


class Stateful(nn.Module):
    """Writes to a buffer in place, puts another in a buffer's place, and keeps a constant."""

    scale: Tensor
    count: Tensor
    last: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) * self.scale
        self.count += 1
        self.last = out[0].detach()
        return out


def test_fresh_statistics_are_tracked() -> None:
    """Statistics that hold no estimate are tracked under either policy, or evaluation would be wrong."""
    plan = plan_buffers(targets.conv_norm(), "frozen")
    assert plan.tracked == STATISTICS
    assert not plan.always_eval
    assert plan_buffers(targets.conv_norm(), "tracked").tracked == STATISTICS


def test_estimated_statistics_are_frozen() -> None:
    """Statistics that hold an estimate stay, and their module stays in evaluation mode."""
    plan = plan_buffers(targets.estimated_conv_norm(), "frozen")
    assert not plan.tracked
    assert plan.always_eval == {"1"}
    tracked = plan_buffers(targets.estimated_conv_norm(), "tracked")
    assert tracked.tracked == STATISTICS
    assert not tracked.always_eval


@pytest.mark.parametrize("buffer", ["running_mean", "running_var"])
def test_an_estimate_without_its_counter(buffer: str) -> None:
    """Statistics loaded from a file without the counter are an estimate when they are not 0 and 1."""
    module = nn.BatchNorm1d(3)
    getattr(module, buffer)[1] = 0.5
    assert plan_buffers(module, "frozen").always_eval == {""}
    module.num_batches_tracked = None
    assert plan_buffers(module, "frozen").always_eval == {""}


def test_other_buffers() -> None:
    """Policy "frozen" tracks no other buffer, "tracked" those that are persistent, and no more."""
    assert not plan_buffers(Stateful(), "frozen").tracked
    assert plan_buffers(Stateful(), "tracked").tracked == {"count", "last"}
    assert not plan_buffers(nn.BatchNorm1d(3, track_running_stats=False), "frozen").tracked


def test_unknown_policy() -> None:
    """An unknown policy is refused with the two there are, also by the model."""
    with pytest.raises(ConfigError, match="buffers: 'warm' is not one of frozen, tracked"):
        plan_buffers(targets.mlp(), "warm")
    with pytest.raises(ConfigError, match="buffers: 'warm'"):
        MappingModel(targets.mlp(), 16, buffers="warm")


def test_frozen_norm_is_one_function() -> None:
    """With an estimate, training and evaluation mode see the same function, and it stays."""
    model = MappingModel(targets.estimated_conv_norm(), 16)
    x = torch.randn(8, 1, 6, 6)
    before = model.eval()(x)
    assert torch.equal(model.train()(x), before)
    assert torch.equal(model.eval()(x), before)
    assert not [name for name in model.state_dict() if name.startswith("tracked")]


@pytest.mark.parametrize("policy", ["frozen", "tracked"])
def test_a_fresh_norm_is_estimated_as_usual(policy: str) -> None:
    """A fresh BatchNorm collects the statistics that it collects in ordinary training."""
    target, twin = targets.conv_norm(), targets.conv_norm()
    model = MappingModel(target, 16, buffers=policy)
    for _ in range(4):
        x = torch.randn(8, 1, 6, 6)
        assert torch.equal(model(x), twin(x))
    state = model.state_dict()
    for name in STATISTICS:
        assert torch.equal(state[f"target.tracked.{name}"], twin.get_buffer(name))
    assert int(target.get_buffer("1.num_batches_tracked")) == 0
    assert torch.equal(model.eval()(x), twin.eval()(x))


def test_tracked_buffers_follow_either_way_of_writing() -> None:
    """Under "tracked" a buffer written in place and one that is replaced end as in the module itself."""
    target = Stateful()
    model = MappingModel(target, 8, "slvt", buffers="tracked")
    x = torch.randn(4, 6)
    outputs = [model(x) for _ in range(3)]
    exported = model.export()
    assert int(exported.get_buffer("count")) == 3
    assert torch.equal(exported.get_buffer("last"), outputs[-1][0])
    assert int(target.count) == 0
    assert not target.last.any()


def test_frozen_buffers_do_not_move() -> None:
    """Under "frozen" a module that writes to its buffers in training begins from the same ones each time."""
    model = MappingModel(Stateful(), 8, "slvt")
    x = torch.randn(4, 6)
    fingerprint = model.base_fingerprint()
    for _ in range(3):
        model(x)
    assert int(model.export().get_buffer("count")) == 0
    assert MappingModel(model.export(), 8, "slvt").base_fingerprint() == fingerprint


def test_shared_buffers_stay_shared() -> None:
    """A norm that stands in two places is one norm: its statistics are counted twice a pass."""
    norm = nn.BatchNorm1d(6)
    model = MappingModel(nn.Sequential(norm, nn.Linear(6, 6), norm), 16)
    model(torch.randn(5, 6))
    exported = model.export()
    assert int(exported.get_buffer("0.num_batches_tracked")) == 2
    assert exported.get_buffer("2.running_mean") is exported.get_buffer("0.running_mean")


@pytest.mark.parametrize(
    "norm",
    [
        lambda: nn.BatchNorm1d(6),
        lambda: nn.BatchNorm1d(6, affine=False, momentum=None),
        lambda: nn.SyncBatchNorm(6).eval(),
        lambda: nn.BatchNorm1d(6, track_running_stats=False),
    ],
    ids=["plain", "bare", "eval", "untracked"],
)
def test_batch_policy_is_the_batch_at_hand(norm: Callable[[], nn.Module]) -> None:
    """Under "batch" outputs are normalised by the batch in any mode, nothing is tracked, and export keeps to it."""
    torch.manual_seed(0)
    target = nn.Sequential(nn.Linear(6, 6), norm())
    with torch.no_grad():
        target(torch.randn(7, 6))  # an estimate, if it keeps one
    model = MappingModel(target, 16, buffers="batch")
    x = torch.randn(9, 6) * 4 + 3
    for mode in (True, False):
        out = model.train(mode)(x)
        torch.testing.assert_close(out.mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0)
        torch.testing.assert_close(out.std(dim=0, correction=0), torch.ones(6), atol=1e-3, rtol=0)
        torch.testing.assert_close(model.export()(x), out)
    assert set(model.state_dict()) == {"latent"}


def test_batch_policy_leaves_the_target_alone() -> None:
    """The user's norm keeps its statistics and goes on tracking."""
    target = targets.estimated_conv_norm()
    norm = target[1]
    assert isinstance(norm, nn.BatchNorm2d)
    before = target.state_dict()
    MappingModel(target, 16, buffers="batch")(torch.randn(4, 1, 6, 6))
    assert norm.track_running_stats
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


def test_batch_policy_and_other_buffers() -> None:
    """Buffers that are no statistics stay as they are; a norm that is not torch's is refused by name."""
    model = MappingModel(Stateful(), 8, "slvt", buffers="batch")
    model(torch.randn(4, 6))
    assert int(model.export().get_buffer("count")) == 0

    class OwnNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("running_mean", torch.zeros(3))
            self.register_buffer("running_var", torch.ones(3))
            self.gain = nn.Parameter(torch.ones(3))

    with pytest.raises(TargetError, match="buffers='batch' cannot make OwnNorm '0' use the batch at hand"):
        MappingModel(nn.Sequential(OwnNorm()), 3, buffers="batch")


def test_instance_norm_under_batch() -> None:
    """An InstanceNorm with statistics uses those of the instance."""
    target = nn.Sequential(nn.Conv1d(2, 3, 1), nn.InstanceNorm1d(3, track_running_stats=True))
    model = MappingModel(target, 6, buffers="batch").eval()
    out = model(torch.randn(4, 2, 8) + 5)
    torch.testing.assert_close(out.mean(dim=-1), torch.zeros(4, 3), atol=1e-5, rtol=0)


def test_replaced_buffers_when_compiled() -> None:
    """A compiled module that puts another tensor in a buffer's place leaves what it leaves when not compiled."""
    torch.compiler.reset()
    model = MappingModel(Stateful(), 8, "slvt", buffers="tracked")
    compiled = torch.compile(model, backend="aot_eager")
    x = torch.randn(4, 6)
    for _ in range(2):
        out = compiled(x)
    exported = model.export()
    assert int(exported.get_buffer("count")) == 2
    assert torch.equal(exported.get_buffer("last"), out[0])


class Remembers(nn.Module):
    """Keeps what it has seen in buffers that are not persistent, and how much that is in plain attributes."""

    seen: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(6, 3)
        self.calls = 0
        self.register_buffer("seen", torch.zeros(8, 3), persistent=False)
        self._grow(2)

    def _grow(self, length: int) -> None:
        self.length = length
        self.register_buffer("table", torch.arange(float(length))[:, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.length:
            self._grow(len(x))
        out: Tensor = self.linear(x) + self.table[: len(x)]
        self.seen[self.calls % 8] = out[0]
        self.calls += 1
        return out + self.seen.detach().sum(0)


@pytest.mark.parametrize("policy", ["frozen", "tracked", "batch"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("lazy", [True, False])
def test_scratch_is_as_in_the_target(policy: str, training: bool, lazy: bool, tmp_path: Path) -> None:
    """Buffers that are not persistent change in place, and in shape, as in the target, and are not saved."""
    target, twin = Remembers().train(training), Remembers().train(training)
    model = MappingModel(target, 8, "slvt", buffers=policy, lazy=lazy)
    for length in (2, 5, 5, 3):
        x = torch.randn(length, 6)
        torch.testing.assert_close(model(x), twin(x))
        twin.seen.detach_()
        model(x[:1]).sum().backward()
        twin(x[:1])
        twin.seen.detach_()
    assert not target.seen.any()
    assert len(target.table) == 2
    torch.testing.assert_close(copy.deepcopy(model)(x), twin(x))
    model.save(tmp_path / "m")
    assert MappingModel.load(tmp_path / "m", target).target.scratch.as_dict()["table"].shape == (2, 1)


def test_frozen_buffers_do_not_move_in_evaluation(tmp_path: Path) -> None:
    """Under "frozen" a module that counts in evaluation too gives the same each time, and its file fits."""

    class Counts(Stateful):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.count

    target = Counts().eval()
    model = MappingModel(target, 8, "slvt")
    x = torch.randn(4, 6)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            outputs = [model(x) for _ in range(3)]
        assert torch.equal(outputs[0], outputs[2])
    model.save(tmp_path / "m")
    assert torch.equal(MappingModel.load(tmp_path / "m", target)(x), outputs[0])


def test_a_buffer_made_in_a_pass() -> None:
    """A buffer that is None before the first pass is made by it, and comes along in copies and exports."""

    class Late(nn.Module):
        ones: Tensor | None

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)
            self.register_buffer("ones", None, persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if self.ones is None:
                self.ones = torch.ones(3)
            out: Tensor = self.linear(x) * self.ones
            return out

    target = Late()
    model = MappingModel(target, 8, "slvt")
    x = torch.randn(4, 6)
    for each in (model, model.eval(), copy.deepcopy(model), model.export()):
        assert torch.equal(each(x), target(x))


class Clamps(nn.Module):
    """Writes to a parameter that does not train."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.book = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.book.data.view(-1).mul_(0.5)
        out: Tensor = self.linear(x) * self.book
        return out


@pytest.mark.parametrize("share", [True, False])
def test_a_frozen_parameter_that_is_written_to(share: bool) -> None:
    """A forward that writes to a frozen parameter is refused before it has, with what to do."""
    target = Clamps()
    model = MappingModel(target, 8, "slvt", share_base=share)
    with pytest.raises(TargetError, match=r"writes to the frozen parameter 'book'.*make it a buffer"):
        model(torch.randn(4, 6))
    assert target.book.tolist() == model.target.frozen.as_dict()["book"].tolist() == [1, 1, 1]


def test_frozen_embeddings_with_max_norm(tmp_path: Path) -> None:
    """A frozen embedding with max_norm runs, on private memory alone, and its file fits."""
    torch.manual_seed(0)
    target = nn.Sequential(nn.Embedding(5, 4, max_norm=0.1), nn.Linear(4, 2))
    before = target.get_parameter("0.weight").clone()
    tokens = torch.arange(5)
    with pytest.raises(TargetError, match=r"'0\.weight'.*use share_base=False"):
        MappingModel(target, 6, "slvt", frozen="0", share_base=True)(tokens)
    model = MappingModel(target, 6, "slvt", frozen="0")
    output = model(tokens)
    model.save(tmp_path / "m")
    assert torch.equal(target.get_parameter("0.weight"), before)
    assert torch.equal(MappingModel.load(tmp_path / "m", target)(tokens), output)
