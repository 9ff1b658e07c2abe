"""Strategies inside strategies, and what a strategy remembers beside the latent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import safetensors
import torch
from attrs import define
from torch import Tensor, nn

import mapping_core.builtin
import mapping_plugin_slvt
from mapping_core import (
    BudgetError,
    ConfigError,
    FileFormatError,
    Generator,
    GeneratorConfig,
    MappingModel,
    PluginError,
    Registry,
    UnknownComponentError,
    hookimpl,
)
from mapping_core.commands.inspect import _facts
from mapping_core.config import dump_toml, load_toml, structure, unstructure
from mapping_core.contexts import GeneratorContext
from mapping_core.nesting import nested
from mapping_core.recipe import read_header
from mapping_plugin_slvt import Slvt
from tests import targets
from tests.unit.test_files import rewrite


class Gated(Generator):
    """What the inner strategy gives, times a gate that is remembered."""

    def __init__(self, inner: Generator) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("gate", torch.ones(()))

    @property
    def latent_sizes(self) -> dict[str, int]:
        return self.inner.latent_sizes

    def forward(self, latents: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: weight * self.gate for name, weight in self.inner(latents, base).items()}

    def assignment(self) -> dict[str, tuple[str, ...]]:
        return self.inner.assignment()


@define(frozen=True, kw_only=True)
class Gate(GeneratorConfig):
    """A strategy around another."""

    name = "gate"
    strategy: GeneratorConfig | str | None = None
    budget: int | None = None

    def build(self, context: GeneratorContext) -> Generator:
        budget = context.latent_dim if self.budget is None else self.budget
        return Gated(context.inner(self.strategy, layout=context.layout, latent_dim=budget))


@define(frozen=True, kw_only=True)
class Greedy(GeneratorConfig):
    """A strategy that uses one number less than it is given."""

    name = "greedy"

    def build(self, context: GeneratorContext) -> Generator:
        return context.inner(None, layout=context.layout, latent_dim=context.latent_dim - 1)


class Plugin:
    """Registers both."""

    @hookimpl
    def mapping_generators(self) -> list[type[GeneratorConfig]]:
        return [Gate, Greedy]


REGISTRY = Registry.of(mapping_core.builtin, mapping_plugin_slvt, Plugin())


def model(strategy: GeneratorConfig | str | dict[str, object], latent_dim: int = 16) -> MappingModel:
    """Return a model whose latent is not 0."""
    made = MappingModel(targets.mlp(), latent_dim, strategy, registry=REGISTRY)
    with torch.no_grad():
        made.latent.normal_(generator=torch.Generator().manual_seed(0))
    return made


@pytest.mark.parametrize(
    "strategy",
    [
        Gate(strategy=Gate(strategy=Slvt())),
        Gate(strategy=Gate(strategy="slvt")),
        {"type": "gate", "strategy": {"type": "gate", "strategy": "slvt"}},
    ],
    ids=["objects", "name", "tables"],
)
def test_spellings(strategy: GeneratorConfig | dict[str, object]) -> None:
    """Objects, names and tables are the same at any depth, and all suppliers are known."""
    made = model(strategy)
    assert made.strategy == Gate(strategy=Gate(strategy=Slvt()))
    assert list(nested(made.strategy)) == ["strategy", "strategy.strategy"]
    assert set(made.suppliers) == {"strategy", "strategy.strategy", "strategy.strategy.strategy", "mapper"}
    assert "slvt" in str(made.suppliers["strategy.strategy.strategy"])


def test_as_the_inner_one_alone() -> None:
    """A wrapper that changes nothing gives the weights of what it wraps; no inner strategy is one latent."""
    plain = model("slvt").generate_weights()
    for strategy in (Gate(strategy="slvt"), Gate()):
        wrapped = model(strategy).generate_weights()
        assert all(torch.equal(wrapped[name], weight) for name, weight in plain.items())


def test_toml(tmp_path: Path) -> None:
    """A table within a table, there and back."""
    path = tmp_path / "gate.toml"
    path.write_text('[strategy]\ntype = "gate"\n[strategy.strategy]\ntype = "gate"\nstrategy = "slvt"\n')

    @define(frozen=True, kw_only=True)
    class Run:
        strategy: GeneratorConfig | str

    read = load_toml(path, Run, REGISTRY)
    assert read.strategy == Gate(strategy=Gate(strategy=Slvt()))
    path.write_text(dump_toml(read))
    assert load_toml(path, Run, REGISTRY) == read
    assert structure(unstructure(read), Run, registry=REGISTRY) == read


def test_unknown_names_have_their_path() -> None:
    """A name that nobody supplies, deep inside, is reported where it stands, given either way."""
    for strategy in (Gate(strategy=Gate(strategy="slvd")), {"type": "gate", "strategy": Gate(strategy="slvd")}):
        with pytest.raises(
            UnknownComponentError, match=r"^strategy.strategy.strategy: no generator named 'slvd'.*'slvt'"
        ):
            model(strategy)


def test_a_name_that_was_never_resolved() -> None:
    """Built by hand, a name is no strategy, and the error says what to do."""
    context = GeneratorContext(
        layout=model("slvt").layout,
        latent_dim=4,
        seed=0,
        mapper=REGISTRY.resolve("mapper", "srht"),  # type: ignore[arg-type]
    )
    with pytest.raises(ConfigError, match=r"'slvt' is a name still.*Registry\.resolve"):
        Gate(strategy="slvt").build(context)


def test_inner_budget_and_contract() -> None:
    """An inner strategy gets a budget that fits its layout, and is held to the contract of any."""
    with pytest.raises(BudgetError, match=r"latent_dim=10,000 does not fit the inner strategy \(slvt\), which has \d+"):
        model(Gate(strategy="slvt", budget=10_000))
    with pytest.raises(PluginError, match="strategy 'greedy' uses 15 numbers instead of latent_dim=16"):
        model(Gate(strategy="greedy"))


def test_file_names_every_plugin(tmp_path: Path) -> None:
    """The recipe names who supplies each component; one that is missing, or is another's, is an error that says so."""
    made = model(Gate(strategy=Gate(strategy="slvt")))
    made.save(tmp_path / "m")
    inside = read_header(tmp_path / "m").recipe["components"]["strategy"]["nested"]
    assert inside == {
        "strategy": {"kind": "generator", "supplier": made.suppliers["strategy.strategy"]},
        "strategy.strategy": {"kind": "generator", "supplier": made.suppliers["strategy.strategy.strategy"]},
    }
    assert ("", f"strategy.strategy.strategy from {made.suppliers['strategy.strategy.strategy']}") in list(
        _facts(read_header(tmp_path / "m"))
    )
    loaded = MappingModel.load(tmp_path / "m", targets.mlp(), registry=REGISTRY)
    assert loaded.components() == made.components()
    alone = Registry.of(mapping_core.builtin, Plugin())
    with pytest.raises(UnknownComponentError, match=r"strategy\.strategy.*'slvt'.*the file was written with .*slvt"):
        MappingModel.load(tmp_path / "m", targets.mlp(), registry=alone)


def test_inner_components_of_other_distributions(tmp_path: Path) -> None:
    """With plugins as installed, an inner strategy is taken from the distribution the file names, or refused."""
    path = tmp_path / "m"
    installed = Registry.discover(allow=["mapping-plugin-slvt"])
    own = Registry.of(Plugin())
    registry = Registry(entries=(*installed.entries, *own.entries), plugins=())
    MappingModel(targets.mlp(), 16, Gate(strategy="slvt"), registry=registry).save(path)
    assert MappingModel.load(path, targets.mlp(), registry=registry).strategy == Gate(strategy=Slvt())
    components = read_header(path).recipe["components"]
    elsewhere = {"strategy": {"kind": "generator", "supplier": "elsewhere 1.0"}}
    rewrite(path, components={**components, "strategy": {**components["strategy"], "nested": elsewhere}})
    with pytest.raises(
        UnknownComponentError, match=r"strategy\.strategy 'slvt' of elsewhere 1\.0.*pip install elsewhere"
    ):
        MappingModel.load(path, targets.mlp(), registry=registry)


def test_damaged_nesting(tmp_path: Path) -> None:
    """A recipe whose inner entries are of the wrong kind is a damaged file."""
    path = tmp_path / "m"
    model(Gate(strategy="slvt")).save(path)
    components = read_header(path).recipe["components"]
    wrongs: list[object] = [[], {"strategy": "slvt"}, {"strategy": {"kind": "spoon", "supplier": None}}]
    for wrong in wrongs:
        rewrite(path, components={**components, "strategy": {**components["strategy"], "nested": wrong}})
        with pytest.raises(FileFormatError, match="the wrong kind of components"):
            MappingModel.load(path, targets.mlp(), registry=REGISTRY)


def test_state_is_saved_and_noticed(tmp_path: Path) -> None:
    """A persistent buffer of a strategy is in the state and the file, and kept weights follow it."""
    made = model(Gate(strategy="slvt")).eval()
    assert "generator.gate" in made.state_dict()
    x = torch.ones(2, next(iter(made.layout.mapped)).shape[1])
    with torch.no_grad():
        before = made(x)
        made.get_buffer("generator.gate").fill_(0.5)
        after = made(x)
    assert not torch.equal(before, after)
    made.save(tmp_path / "m")
    with safetensors.safe_open(tmp_path / "m", framework="pt") as file:
        assert "generator.gate" in file.keys()  # noqa: SIM118
        assert json.loads(file.metadata()["mapping_core"])["components"]["strategy"]["settings"]["type"] == "gate"
    loaded = MappingModel.load(tmp_path / "m", targets.mlp(), registry=REGISTRY).eval()
    with torch.no_grad():
        assert torch.equal(loaded(x), after)


def test_fields_that_only_a_type_checker_can_read() -> None:
    """A component made by hand, whose annotations cannot be resolved, is taken as it is."""

    @define(frozen=True, kw_only=True)
    class Odd(Gate):
        name = "odd"
        module: nowhere.Thing | None = None  # type: ignore[name-defined]  # noqa: F821

    odd = Odd(strategy=Slvt())
    assert REGISTRY.resolve(GeneratorConfig, odd) is odd
    assert isinstance(MappingModel(nn.Linear(4, 4), 5, odd, registry=REGISTRY).generator, Gated)
