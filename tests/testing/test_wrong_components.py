"""Each check of the conformance kit catches its fault: a right component of each kind, and wrong ones beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import pytest
import torch
from attrs import define, evolve, field
from torch import Tensor, nn

from mapping_core import (
    CallbackConfig,
    Component,
    DynamicsConfig,
    GeneratorConfig,
    LossConfig,
    MapperConfig,
    ModulationConfig,
    PhasePolicyConfig,
    TargetError,
)
from mapping_core.components import KINDS
from mapping_core.interfaces.callback import Callback
from mapping_core.interfaces.dynamics import DynamicsModel, Proposal
from mapping_core.interfaces.generator import Generator
from mapping_core.interfaces.loss import Loss, LossStep
from mapping_core.interfaces.mapper import LinearMap, LinearMapper, Mapper
from mapping_core.interfaces.modulation import Modulation
from mapping_core.interfaces.phase_policy import (
    Phase,
    PhaseDecision,
    PhaseOutcome,
    PhasePolicy,
    Progress,
    Verdict,
)
from mapping_core.one_latent import OneLatent
from mapping_core.random import RandomStream
from mapping_core.testing import ContractError, checks_of, common
from mapping_core.testing.checking import check_component
from mapping_core.testing.worlds import world_of

# --- mappers


class Dense(Mapper):
    """``W z / sqrt(d)``, with one fault."""

    def __init__(self, context: Any, fault: str) -> None:
        d, n = context.in_features, context.out_features
        super().__init__(d, n + (fault == "sizes"))
        self.fault = fault
        stream = 0 if fault == "stream" else context.stream
        seed = 0 if fault == "seed" else context.seed
        weight = RandomStream(seed, stream, purpose=99).normal(n * d).float().view(n, d) / d**0.5
        if fault == "global random":
            weight = torch.randn(n, d) / d**0.5
        if fault == "gain":
            weight = weight * d**0.5
        if fault == "trains":
            self.weight: Any = nn.Parameter(weight)
        elif fault == "device":
            self.weight = weight
        else:
            self.register_buffer("weight", weight, persistent=fault == "saves")

    def forward(self, z: Tensor) -> Tensor:
        fault = self.fault
        weight: Tensor = self.weight.to(z.dtype)
        if fault == "power of two" and self.in_features & 1:
            raise ValueError("cannot")
        if fault == "lead":
            return (z.reshape(-1, self.in_features)[0] @ weight.T).expand(*z.shape[:-1], -1)
        if fault == "dtype":
            z, weight = z.float(), weight.float()
        if fault == "detached":
            z = 0.5 * z + 0.5 * z.detach()
        if fault == "graph break" and float(z.detach().sum()) == 7.0:
            return z.new_zeros(self.out_features)
        output: Tensor = z @ weight.T
        return output + 0.1 if fault == "offset" else output

    def rows(self, z: Tensor, start: int, stop: int) -> Tensor:
        return super().rows(z, start, stop) * (2 if self.fault == "rows" else 1)


class DenseRows(LinearMap):
    """A dense matrix [n, d] at work, with one fault."""

    def __init__(self, weight: Tensor, fault: str) -> None:
        self.weight, self.fault = weight, fault

    @property
    def prepared_shape(self) -> tuple[int, ...]:
        return (1, 1) if self.fault == "prepared shape" else (self.weight.shape[1],)

    def prepare(self, z: Tensor) -> Tensor:
        return z

    @classmethod
    def unprepare_all(cls, maps: Sequence[Self], grads: Sequence[Tensor]) -> list[Tensor]:
        return [grad * (3 if each.fault == "unprepare" else 1) for each, grad in zip(maps, grads, strict=True)]

    @classmethod
    def prepare_all(cls, maps: Sequence[Self], latents: Sequence[Tensor]) -> list[Tensor]:
        return [z * (3 if each.fault == "prepare all" else 1) for each, z in zip(maps, latents, strict=True)]

    def rows_of(self, prepared: Tensor, start: int, stop: int) -> Tensor:
        rows = prepared @ self.weight[start:stop].T
        return rows.tanh() if self.fault == "not linear" else rows

    def write(self, prepared: Tensor, start: int, base: Tensor, scale: float, out: Tensor) -> None:
        added = self.rows_of(prepared, start, start + len(out))
        out.copy_(base + (added if self.fault == "write" else scale * added))

    def gather(self, grads: Sequence[Tensor], scales: Sequence[float], start: int, into: Tensor) -> None:
        grad = torch.cat([each.reshape(-1) * scale for each, scale in zip(grads, scales, strict=True)])
        into.add_(self.weight[start : start + len(grad)].T @ grad, alpha=3.0 if self.fault == "gather" else 1.0)


class DenseLinear(LinearMapper):
    """The same as a `LinearMapper`, with one fault."""

    def __init__(self, context: Any, fault: str) -> None:
        super().__init__(context.in_features, context.out_features)
        dense = Dense(context, "")
        self.register_buffer("weight", dense.get_buffer("weight"), persistent=False)
        self.fault = fault

    def unpacked(self, dtype: torch.dtype) -> LinearMap:
        return DenseRows(self.get_buffer("weight").to(dtype), self.fault)


@define(frozen=True, kw_only=True)
class AMapper(MapperConfig):
    """A mapper with a fault."""

    name = "a_mapper"
    fault: str = ""
    linear: bool = False

    def build(self, context: Any) -> Any:
        if self.fault == "type":
            return nn.Linear(context.in_features, context.out_features)
        return (DenseLinear if self.linear else Dense)(context, self.fault)


# --- generators


class AStrategy(OneLatent):
    """One latent for all, with one fault."""

    def __init__(self, context: Any, fault: str) -> None:
        if fault == "budget":
            context = evolve(context, latent_dim=context.latent_dim - context.latent_dim % 2)
        if fault == "seed":
            context = evolve(context, seed=0)
        super().__init__(context)
        self.fault, self.calls = fault, 0
        self.offset = torch.randn(()) if fault == "global random" else torch.tensor(0.0)
        if fault == "trains":
            self.extra = nn.Parameter(torch.zeros(3))
        if fault == "forgets":
            self.register_buffer("scale", torch.zeros(()), persistent=False)

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        fault, z = self.fault, latents["z"]
        self.calls += fault == "remembers"
        if fault == "writes":
            next(iter(base.values())).add_(1.0)
        if fault == "detached":
            z = 0.5 * z + 0.5 * z.detach()
        if fault == "no gradient":
            z = z * 0 + z.detach()
        if fault == "lead" and z.ndim > 1:
            z = z[:1].expand_as(z)
        if fault == "graph break" and float(z.detach().sum()) == 7.0:
            return dict(base)
        weights = super().forward({"z": z}, base)
        if fault in ("offset", "global random", "remembers"):
            shift = {"offset": 0.1, "global random": float(self.offset) * float(z.any()), "remembers": 0.0}[fault]
            shift += 0.01 * self.calls * float(z.any())
            return {name: weight + shift for name, weight in weights.items()}
        return weights

    def generate_some(self, *arguments: Any) -> dict[str, Tensor]:
        some = super().generate_some(*arguments)
        return {name: weight + 1 for name, weight in some.items()} if self.fault == "some" else some

    def pack(self, latents: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        return {"codes": latents["z"].half()} if self.fault == "packs" else None

    def unpack(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {"z": packed["codes"].float()}


class Remembering(OneLatent):
    """A scale drawn when it is built and kept in no state."""

    drawn: ClassVar[int] = 0

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        Remembering.drawn += 1
        self.scale = 1.0 + Remembering.drawn / 10

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return super().forward({"z": self.scale * latents["z"]}, base)


@define(frozen=True, kw_only=True)
class AGenerator(GeneratorConfig):
    """A strategy with a fault."""

    name = "a_generator"
    fault: str = ""

    def build(self, context: Any) -> Generator:
        return Remembering(context) if self.fault == "forgets" else AStrategy(context, self.fault)


# --- modulations


class AGain(Modulation):
    """``delta * (1 + mean(z))``, with one fault."""

    def __init__(self, context: Any, fault: str) -> None:
        super().__init__()
        self.fault = fault
        self.random = float(torch.randn(())) if fault == "global random" else 1.0
        if fault == "trains":
            self.extra = nn.Parameter(torch.zeros(3))
        if fault == "device":
            self.table = torch.ones(context.in_features)

    def forward(self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        fault = self.fault
        if fault == "device":
            z = z * self.table
        if fault == "detached":
            z = 0.5 * z + 0.5 * z.detach()
        if fault == "graph break" and float(z.detach().sum()) == 7.0:
            return delta
        gain = 1 + z.mean(dim=-1) * self.random
        if fault == "offset":
            gain = gain + 0.1
        if fault == "some":
            gain = gain + 0.1 * (len(delta) == 1) * z.abs().sum()
        if fault == "constant":
            return dict(delta)
        if fault == "lead":
            gain = gain.reshape(-1)[0]
            return {name: each * gain for name, each in delta.items()}
        made = {name: each * gain.reshape(gain.shape + (1,) * base[name].ndim) for name, each in delta.items()}
        if fault == "writes":
            next(iter(delta.values())).zero_()
        return dict(list(made.items())[1:]) if fault == "names" else made

    def of_rows(
        self, delta: dict[str, Tensor], z: Tensor, base: Mapping[str, Tensor], rows: tuple[int, int]
    ) -> dict[str, Tensor]:
        made = super().of_rows(delta, z, base, rows)
        return {name: 2 * each for name, each in made.items()} if self.fault == "rows" else made


@define(frozen=True, kw_only=True)
class AModulation(ModulationConfig):
    """A modulation with a fault."""

    name = "a_modulation"
    fault: str = ""

    def build(self, context: Any) -> Modulation:
        return AGain(context, self.fault)


# --- losses


class ALossOf(Loss):
    """The squared error to one-hot classes, with one fault."""

    def __init__(self, context: Any, fault: str) -> None:
        super().__init__()
        self.fault, self.model = fault, [context.model]
        self.coefficient = nn.Parameter(torch.ones(()))
        self.drawn = torch.rand(()) if fault == "forgets" else torch.tensor(1.0)

    def get_extra_state(self) -> Any:
        return {"object": object()} if self.fault == "state" else {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        pass

    def forward(self, step: LossStep) -> Any:
        fault = self.fault
        if fault == "refuses":
            raise ValueError("expects a dictionary of boxes")
        goal = torch.nn.functional.one_hot(step.targets, 3).to(step.predictions.dtype)
        predictions = step.predictions.detach() if fault == "detached" else step.predictions
        if fault == "writes":
            step.targets.zero_()
        if fault == "no grad" and not torch.is_grad_enabled():
            return torch.tensor(torch.nan)
        each = (predictions - goal).square().mean(dim=-1) * self.coefficient * self.drawn
        if fault == "vector":
            return each
        if fault == "number":
            return float(each.detach().mean())
        result = each.sum() if fault == "sum" else each.mean()
        if fault == "backward":
            result.backward(retain_graph=True)
        return result / 0 if fault == "infinite" else result

    def items(self, step: LossStep) -> int:
        return len(step.targets) if self.fault != "items" else 1

    def metrics(self, step: LossStep) -> dict[str, Tensor]:
        return {"each": step.predictions} if self.fault == "metrics" else {}


@define(frozen=True, kw_only=True)
class ALoss(LossConfig):
    """A loss with a fault."""

    name = "a_loss"
    fault: str = ""

    def build(self, context: Any) -> Any:
        return nn.MSELoss() if self.fault == "type" else ALossOf(context, self.fault)


# --- phase policies


class Cycle(PhasePolicy):
    """Warm-up, then full steps and jumps in turn, with one fault."""

    def __init__(self, context: Any, fault: str) -> None:
        self.fault = fault
        self.asked, self.jumps = 0, True
        if fault == "length known":
            self.last = context.total_steps - 1

    def next(self, progress: Progress) -> Any:
        fault = self.fault
        self.asked += 1
        if progress.phase is None:
            return PhaseDecision(Phase.PREDICT, horizons=(1,)) if fault == "starts" else PhaseDecision(Phase.WARMUP, 10)
        if fault == "answer":
            return Phase.FULL
        if fault == "length":
            return PhaseDecision(Phase.FULL, 0)
        length = 10 + (int(torch.randint(9, ())) if fault == "global random" else self.asked % 7)
        if progress.phase is Phase.FULL and (self.jumps or fault == "illegal"):
            return PhaseDecision(Phase.PREDICT, horizons=(length,))
        if progress.phase is Phase.FULL:
            return PhaseDecision(Phase.FULL, length)
        illegal = fault == "illegal" and progress.phase is Phase.WARMUP
        return PhaseDecision(Phase.CORRECT if illegal else Phase.FULL, length)

    def feedback(self, outcome: PhaseOutcome) -> None:
        if outcome.jump is not None:
            self.jumps = outcome.jump.verdict is Verdict.ACCEPTED or self.asked % 2 == 0

    def state_dict(self) -> dict[str, Any]:
        if self.fault == "state":
            return {"policy": self}
        return {"jumps": self.jumps} if self.fault == "forgets" else {"asked": self.asked, "jumps": self.jumps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.jumps = state["jumps"]
        self.asked = state.get("asked", 0)


@define(frozen=True, kw_only=True)
class APolicy(PhasePolicyConfig):
    """A phase policy with a fault."""

    name = "a_policy"
    fault: str = ""

    def build(self, context: Any) -> PhasePolicy:
        return Cycle(context, self.fault)


# --- dynamics models


class Line(DynamicsModel):
    """Goes on by the last difference, with one fault."""

    def __init__(self, context: Any, fault: str) -> None:
        self.fault = fault
        self.kept: list[Tensor] = []
        self.rejected = False
        if fault == "one number" and context.size == 1:
            raise ValueError("needs two numbers")

    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        self.kept = [*self.kept[-1:], latent if self.fault == "memory" else latent.clone()]
        if self.fault == "graph":
            self.kept[-1].requires_grad_()
        if self.fault == "writes":
            latent.zero_()

    def propose(self, horizons: Sequence[int]) -> Any:
        fault = self.fault
        if len(self.kept) < 2:
            return [Proposal(horizon=1, delta=torch.zeros(1))] if fault == "too early" else []
        if fault == "silent":
            return []
        step = self.kept[1] - self.kept[0]
        if fault == "global random":
            step = step + 1e-3 * torch.randn_like(step)
        if fault == "dtype":
            step = step.half()
        if fault == "rejected" and self.rejected:
            step = step / 0
        if fault == "shared":
            return [Proposal(horizon=horizon, delta=self.kept[1]) for horizon in horizons]
        found = [Proposal(horizon=horizon, delta=step * horizon) for horizon in horizons]
        return found[::-1] if fault == "order" else found

    def feedback(self, accepted: Proposal | None, measured: float | None) -> None:
        self.rejected = accepted is None
        if accepted is not None and self.fault != "jump":
            self.kept = [vector + accepted.delta for vector in self.kept]

    def state_dict(self) -> dict[str, Any]:
        if self.fault == "state":
            return {"model": self}
        return {} if self.fault == "forgets" else {"kept": list(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = list(state.get("kept", []))


class Mean(Line):
    """Its last difference is a mean over all that was seen, and its state forgets that."""

    total = 0.0

    def observe(self, latent: Tensor, loss: float, step: int) -> None:
        super().observe(latent, loss, step)
        self.total += float(latent.sum())

    def propose(self, horizons: Sequence[int]) -> Any:
        return [evolve(each, delta=each.delta * self.total) for each in super().propose(horizons)]


@define(frozen=True, kw_only=True)
class ADynamics(DynamicsConfig):
    """A dynamics model with a fault."""

    name = "a_dynamics"
    fault: str = ""

    def build(self, context: Any) -> DynamicsModel:
        return (Mean if self.fault == "forgets" else Line)(context, self.fault)


# --- callbacks


class Counting(Callback):
    """Counts batches, with one fault."""

    def __init__(self, context: Any, fault: str) -> None:
        self.fault, self.count = fault, 0
        if fault == "writes":
            (context.run_dir / "log.txt").write_text("x", encoding="utf-8")
        if fault == "folder" and context.run_dir is None:
            raise TypeError("unsupported operand type(s) for /: 'NoneType' and 'str'")

    @property
    def state_key(self) -> str:
        return f"counting-{id(self)}" if self.fault == "key" else "counting"

    def on_fit_start(self, trainer: Any) -> None:
        self.count = 0

    def on_batch_end(self, trainer: Any, record: Any) -> None:
        self.count += 1
        if self.fault == "fails":
            raise ZeroDivisionError

    def state_dict(self) -> dict[str, Any]:
        if self.fault == "state":
            return {"count": object()}
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = 0 if self.fault == "forgets" else state["count"]


class Misnamed(Counting):
    """Listens to an event that does not exist."""

    def on_batch_ends(self, trainer: Any, record: Any) -> None:
        """Never called."""


@define(frozen=True, kw_only=True)
class ACallback(CallbackConfig):
    """A callback with a fault."""

    name = "a_callback"
    fault: str = ""

    def build(self, context: Any) -> Any:
        if self.fault == "type":
            return object()
        return (Misnamed if self.fault == "event" else Counting)(context, self.fault)


# --- configurations


class Thawed(MapperConfig):
    """Undecorated: its instances can be changed."""

    name = "thawed"

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__[name] = value


@define(frozen=True)
class Positional(MapperConfig):
    """Takes its field by position."""

    name = "positional"
    terms: int = field(default=4, kw_only=False)


@define(frozen=True, kw_only=True)
class Unwritable(MapperConfig):
    """Has a field that TOML has no word for."""

    name = "unwritable"
    value: Any = (1, None)


@define(frozen=True, kw_only=True)
class Uncopied(MapperConfig):
    """Holds what cannot be pickled."""

    name = "uncopied"
    function: Any = field(factory=lambda: lambda: None, eq=False, repr=False)


RIGHT: tuple[Component, ...] = (
    AMapper(),
    AMapper(linear=True),
    AGenerator(),
    AModulation(),
    ALoss(),
    APolicy(),
    ADynamics(),
    ACallback(),
)

#: A component, and the check that must catch it.
WRONG: tuple[tuple[Component, str], ...] = (
    (Thawed(), "is_a_frozen_configuration"),
    (Positional(), "is_a_frozen_configuration"),
    (AMapper(), "imports_no_torch"),
    (Unwritable(), "survives_toml"),
    (Uncopied(), "copies_and_pickles"),
    *(
        (AMapper(fault=fault), check)
        for fault, check in {
            "type": "builds",
            "sizes": "builds",
            "power of two": "takes_any_size",
            "lead": "keeps_leading_dimensions",
            "dtype": "keeps_the_dtype",
            "device": "follows_the_device",
            "global random": "same_seed_same_map",
            "seed": "seeds_and_streams_differ",
            "stream": "seeds_and_streams_differ",
            "offset": "maps_zero_to_zero",
            "gain": "has_unit_gain",
            "trains": "trains_and_saves_nothing",
            "saves": "trains_and_saves_nothing",
            "rows": "rows_are_those_of_all",
            "detached": "gradient_reaches_the_latent",
            "graph break": "compiles",
        }.items()
    ),
    *(
        (AMapper(fault=fault, linear=True), "linear_parts_agree")
        for fault in ("not linear", "prepared shape", "write", "gather", "prepare all", "unprepare")
    ),
    *(
        (AGenerator(fault=fault), check)
        for fault, check in {
            "trains": "builds",
            "budget": "meets_the_budget",
            "offset": "starts_as_the_target",
            "writes": "starts_as_the_target",
            "remembers": "is_stateless",
            "lead": "keeps_leading_dimensions",
            "global random": "same_seed_same_weights",
            "seed": "same_seed_same_weights",
            "no gradient": "gradient_reaches_every_latent",
            "detached": "gradient_is_that_of_finite_differences",
            "some": "some_are_those_of_all",
            "forgets": "survives_its_file",
            "packs": "packs_without_loss",
            "graph break": "compiles",
        }.items()
    ),
    *(
        (AModulation(fault=fault), check)
        for fault, check in {
            "trains": "builds",
            "names": "keeps_names_and_shapes",
            "writes": "keeps_names_and_shapes",
            "offset": "is_nothing_at_zero",
            "constant": "follows_the_latent",
            "lead": "keeps_leading_dimensions",
            "some": "some_are_those_of_all",
            "rows": "some_are_those_of_all",
            "global random": "same_seed_same_change",
            "detached": "gradient_reaches_the_latent",
            "device": "follows_the_device",
            "graph break": "compiles",
        }.items()
    ),
    *(
        (ALoss(fault=fault), check)
        for fault, check in {
            "type": "builds",
            "refuses": "builds",
            "vector": "is_a_finite_scalar",
            "number": "is_a_finite_scalar",
            "infinite": "is_a_finite_scalar",
            "detached": "gradient_reaches_the_latent",
            "backward": "gradient_reaches_the_latent",
            "sum": "is_a_mean_over_its_items",
            "items": "is_a_mean_over_its_items",
            "no grad": "works_in_validation",
            "metrics": "metrics_are_scalars",
            "writes": "leaves_the_step_alone",
            "forgets": "survives_its_state",
            "state": "survives_its_state",
        }.items()
    ),
    *(
        (APolicy(fault=fault), check)
        for fault, check in {
            "length known": "builds",
            "answer": "answers_a_decision",
            "length": "answers_a_decision",
            "starts": "transitions_are_legal",
            "illegal": "transitions_are_legal",
            "global random": "same_seed_same_phases",
            "forgets": "survives_a_restart",
            "state": "survives_a_restart",
        }.items()
    ),
    *(
        (ADynamics(fault=fault), check)
        for fault, check in {
            "one number": "builds",
            "too early": "is_silent_at_first",
            "silent": "proposes_in_order",
            "order": "proposes_in_order",
            "dtype": "proposes_in_order",
            "graph": "keeps_no_graph_and_no_memory",
            "memory": "keeps_no_graph_and_no_memory",
            "writes": "keeps_no_graph_and_no_memory",
            "shared": "keeps_no_graph_and_no_memory",
            "global random": "proposes_the_same_twice",
            "jump": "takes_no_jump_for_a_step",
            "rejected": "hears_of_rejections",
            "forgets": "survives_a_restart",
            "state": "survives_a_restart",
        }.items()
    ),
    *(
        (ACallback(fault=fault), check)
        for fault, check in {
            "type": "builds",
            "event": "builds",
            "folder": "does_without_a_folder",
            "writes": "writes_nothing_when_built",
            "key": "state_key_is_stable",
            "fails": "sees_a_run",
            "forgets": "goes_on_with_a_run",
            "state": "goes_on_with_a_run",
        }.items()
    ),
)

#: What only a component that lives in this file cannot promise: the file imports torch.
HERE = {"imports_no_torch"}


@pytest.mark.parametrize("component", RIGHT, ids=repr)
def test_right_components_pass(component: Component) -> None:
    """A component without a fault passes every check of its kind."""
    bad = [each for each in check_component(component) if each.result != "passed" and each.check not in HERE]
    assert not bad, bad[0].message


@pytest.mark.parametrize(
    ("component", "name"), WRONG, ids=lambda value: value if isinstance(value, str) else repr(value)
)
def test_each_check_catches_its_fault(component: Component, name: str) -> None:
    """The check fails, and its message says what was found, what the contract is and how to meet it."""
    (check,) = [check for check in checks_of(type(component)) if check.__name__ == name]
    with pytest.raises(ContractError) as caught:
        check(component, world_of(type(component)))
    found, promise, meet = str(caught.value).split("\n")
    assert found.startswith(f"{component!r}: ")
    assert promise == "  contract: " + " ".join((check.__doc__ or "").split())
    assert meet.startswith("  to meet it: ")


def test_an_unknown_setting_that_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Core refuses unknown settings for every component; the check sees it if that should ever change."""
    monkeypatch.setattr("mapping_core.testing.common.structure", lambda *_, **__: AMapper())
    with pytest.raises(ContractError, match="took the setting no_such_setting"):
        common.refuses_an_unknown_setting(AMapper(), None)


def test_every_check_is_tested() -> None:
    """No check is without a component that it catches."""
    caught = {(component.kind, name) for component, name in WRONG}
    shared = {check.__name__ for check in common.CHECKS}
    assert shared - {name for _, name in caught} == {"refuses_an_unknown_setting"}
    for kind, cls in KINDS.items():
        own = {check.__name__ for check in checks_of(cls)} - shared
        assert own == {name for each, name in caught if each == kind} - shared


def test_a_refusal_is_not_a_fault() -> None:
    """A component that refuses the world with a typed error is reported as such, and not as failed."""

    @define(frozen=True, kw_only=True)
    class Choosy(LossConfig):
        """Needs another target."""

        name = "choosy"

        def build(self, context: Any) -> Loss:
            raise TargetError("needs a target that returns boxes")

    results = {each.check: each for each in check_component(Choosy())}
    assert results["builds"].result == "refused"
    assert "needs a target that returns boxes" in results["builds"].message
    assert results["survives_toml"].result == "passed"
