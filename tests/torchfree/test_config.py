"""Configuration: strict conversion, faults with their path, round trips through TOML."""

from __future__ import annotations

import tomllib
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest
from attrs import define, evolve, field
from attrs.validators import ge, in_
from hypothesis import given
from hypothesis import strategies as st

from mapping_core import (
    AmbiguousComponentError,
    CallbackConfig,
    ConfigError,
    GeneratorConfig,
    LossConfig,
    MapperConfig,
    ModulationConfig,
    PhasePolicyConfig,
    PluginError,
    PredictionConfig,
    Registry,
    RunConfig,
    TrainerConfig,
    UnknownComponentError,
    hookimpl,
)
from mapping_core.config import dump_toml, load_toml, structure, unstructure

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal


class Colour(Enum):
    """An enumeration a component may have as a field."""

    RED = "red"
    GREEN = "green"


@define(frozen=True, kw_only=True)
class Inner:
    """A table inside a component."""

    size: int = field(default=1, validator=ge(1))


@define(frozen=True, kw_only=True)
class Layers(GeneratorConfig):
    """The strategy of these tests: a field of every type that TOML can hold."""

    name = "layerwise"
    rank: int = field(default=4, validator=ge(1))
    scale: float = 1.0
    label: str = ""
    on: bool = False
    where: Path | None = None
    colour: Colour = Colour.RED
    mode: Literal["fast", "slow"] = "fast"
    both: int | str = 0
    pair: tuple[int, float] = (1, 2.0)
    words: tuple[str, ...] = ()
    numbers: list[int] = field(factory=list)
    table: dict[str, float] = field(factory=dict)
    anything: dict[str, object] = field(factory=dict)
    inner: Inner = field(factory=Inner)
    nested: ModulationConfig | None = None


@define(frozen=True, kw_only=True)
class Srht(MapperConfig):
    """The default mapper of these tests."""

    name = "srht"


@define(frozen=True, kw_only=True)
class Gain(ModulationConfig):
    """A modulation with a field that must be given."""

    name = "gain"
    groups: int


@define(frozen=True, kw_only=True)
class Auto(LossConfig):
    """The default loss of these tests."""

    name = "auto"


@define(frozen=True, kw_only=True)
class Full(PhasePolicyConfig):
    """The default phase policy of these tests."""

    name = "full"


@define(frozen=True, kw_only=True)
class Stop(CallbackConfig):
    """A callback with a field."""

    name = "early_stopping"
    patience: int = 3


class Components:
    """The plugin that supplies what the run configuration names by default."""

    @hookimpl
    def mapping_generators(self) -> list[type[GeneratorConfig]]:
        """Return the strategy."""
        return [Layers]

    @hookimpl
    def mapping_mappers(self) -> list[type[MapperConfig]]:
        """Return the mapper."""
        return [Srht]

    @hookimpl
    def mapping_modulations(self) -> list[type[ModulationConfig]]:
        """Return the modulation."""
        return [Gain]

    @hookimpl
    def mapping_losses(self) -> list[type[LossConfig]]:
        """Return the loss."""
        return [Auto]

    @hookimpl
    def mapping_phase_policies(self) -> list[type[PhasePolicyConfig]]:
        """Return the phase policy."""
        return [Full]

    @hookimpl
    def mapping_callbacks(self) -> list[type[CallbackConfig]]:
        """Return the callback."""
        return [Stop]


REGISTRY = Registry.of(Components())
MINIMAL: dict[str, object] = {"target": "digits_cnn", "data": "digits", "latent_dim": 8}


def run(**changes: object) -> RunConfig:
    """Return the run configuration of a minimal file with some keys changed."""
    return structure({**MINIMAL, **changes}, RunConfig, registry=REGISTRY)


def refused(**changes: object) -> ConfigError:
    """Return the error a minimal file with some keys changed ends in."""
    with pytest.raises(ConfigError) as caught:
        run(**changes)
    assert "\n" not in str(caught.value)
    return caught.value


def test_defaults_by_name_become_components() -> None:
    """Components that a file does not mention are looked up, in nested tables too."""
    config = run()
    assert (config.strategy, config.mapper, config.modulation) == (Layers(), Srht(), None)
    assert (config.trainer.loss, config.trainer.prediction) == (Auto(), None)


def test_name_table_and_instance_are_the_same() -> None:
    """A name, a table with type, and an instance give equal configurations."""
    instance = Layers()
    assert run(strategy="layerwise") == run(strategy={"type": "layerwise"}) == run(strategy=instance)
    assert run(strategy=instance).strategy is instance
    assert run(strategy="Components:layerwise") == run()


def test_missing_default_component_says_what_to_install() -> None:
    """With no plugin for the default strategy, reading a file says which one to install."""
    with pytest.raises(ConfigError, match=r"\) strategy: no generator .* pip install mapping-plugin-layerwise"):
        structure(MINIMAL, RunConfig, registry=Registry.of())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rank", "8", "expected an integer, got '8' (str)"),
        ("rank", 8.9, "expected an integer, got 8.9 (float)"),
        ("rank", True, "expected an integer, got True (bool)"),
        ("rank", None, "expected an integer, got None (NoneType)"),
        ("rank", 0, "must be >= 1: 0"),
        ("scale", "1.0", "expected a number, got '1.0' (str)"),
        ("scale", True, "expected a number, got True (bool)"),
        ("label", 3, "expected a string, got 3 (int)"),
        ("on", 1, "expected true or false, got 1 (int)"),
        ("where", 3, "expected a path, got 3 (int)"),
        ("colour", "gren", "expected one of 'red', 'green', got 'gren' (str); did you mean 'green'?"),
        ("mode", "fats", "expected one of 'fast', 'slow', got 'fats' (str); did you mean 'fast'?"),
        ("both", 1.5, "expected an integer or a string, got 1.5 (float)"),
        ("pair", [1], "expected 2 items, got 1"),
        ("words", "word", "expected a list, got 'word' (str)"),
        ("numbers", {"a": 1}, "expected a list, got {'a': 1} (dict)"),
        ("table", [1], "expected a table, got [1] (list)"),
        ("table", {3: 1.0}, "keys must be strings, got 3"),
        ("inner", 3, "expected a table, got 3 (int)"),
        ("nested", 3, "expected a modulation (its name, or a table with 'type'), got 3 (int)"),
    ],
)
def test_nothing_is_coerced(key: str, value: object, message: str) -> None:
    """A value of the wrong type or range is refused with its path and what was expected."""
    error = refused(strategy={"type": "layerwise", key: value})
    assert str(error) == f"strategy.{key}: {message}"
    assert error.path == f"strategy.{key}"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("scale", 3, 3.0),
        ("where", "a/b", Path("a/b")),
        ("where", Path("a/b"), Path("a/b")),
        ("colour", "green", Colour.GREEN),
        ("colour", Colour.GREEN, Colour.GREEN),
        ("both", "x", "x"),
        ("pair", [1, 2], (1, 2.0)),
        ("words", ["a", "b"], ("a", "b")),
        ("numbers", (1, 2), [1, 2]),
        ("table", {"a": 1}, {"a": 1.0}),
        ("anything", {"a": [1, "b", {"c": True}]}, {"a": [1, "b", {"c": True}]}),
        ("inner", {"size": 2}, Inner(size=2)),
        ("nested", {"type": "gain", "groups": 2}, Gain(groups=2)),
    ],
)
def test_what_toml_can_say_is_taken(key: str, value: object, expected: object) -> None:
    """Integers serve as floats, strings as paths and enumerations, lists as tuples."""
    got = getattr(run(strategy={"type": "layerwise", key: value}).strategy, key)
    assert got == expected
    assert type(got) is type(expected)


def test_faults_are_collected() -> None:
    """Everything that is wrong is in one error: unknown keys, wrong types, ranges, lists, missing fields."""
    error = refused(
        stratgy="layerwise",
        latent_dim=0,
        modulation={"type": "gain"},
        trainer={
            "max_epoch": 3,
            "max_epochs": "3",
            "schedule": "cosin",
            "callbacks": [
                "early_stopping",
                {"type": "early_stopping", "patience": "3"},
                {"patience": 3},
                "erly_stopping",
            ],
        },
    )
    message = str(error)
    assert error.path == ""
    assert message.startswith("9 faults: (1) ")
    for part in (
        ") stratgy: unknown key; did you mean 'strategy'? (allowed: target, target_arguments, data,",
        ") latent_dim: must be >= 1: 0",
        ") modulation.groups: missing; expected an integer",
        ") trainer.max_epoch: unknown key; did you mean 'max_epochs'?",
        ") trainer.max_epochs: expected an integer, got '3' (str)",
        ") trainer.schedule: must be in ('cosine', 'constant') (got 'cosin'); did you mean 'cosine'?",
        ") trainer.callbacks[1].patience: expected an integer, got '3' (str)",
        ") trainer.callbacks[2].type: expected the name of a callback, it is missing (installed: early_stopping)",
        ") trainer.callbacks[3]: no callback named 'erly_stopping' is installed",
    ):
        assert part in message


def test_component_of_another_kind_or_a_class() -> None:
    """A component in the wrong place, or a class instead of an instance, is named as such."""
    assert str(refused(mapper=Stop())) == "mapper: expected a mapper, got the callback 'early_stopping'"
    assert str(refused(mapper=Srht)) == "mapper: expected a mapper, got the class Srht; write Srht()"


def test_type_must_be_a_name() -> None:
    """A table whose type is no string is refused at that key."""
    error = refused(mapper={"type": 3})
    assert str(error) == "mapper.type: expected the name of a mapper, got 3 (int) (installed: srht)"


def test_single_fault_keeps_its_error_type() -> None:
    """A lone unknown or ambiguous component raises its own error type, with the path."""
    error = refused(mapper={"type": "shrt"})
    assert isinstance(error, UnknownComponentError)
    assert str(error) == "mapper.type: no mapper named 'shrt' is installed (installed: srht); did you mean 'srht'?"
    twice = Registry.of(Components(), type("Others", (Components,), {})())
    data = {"loss": "Others:auto", "callbacks": ["early_stopping"], "prediction": {"policy": "Others:full"}}
    with pytest.raises(AmbiguousComponentError, match=r"^trainer.callbacks\[0\]: 2 distributions supply a callback"):
        structure(data, TrainerConfig, registry=twice, path="trainer")


def test_ambiguous_component_round_trips_with_the_registry() -> None:
    """Written with the registry, a name two distributions supply keeps its distribution."""

    @define(frozen=True, kw_only=True)
    class Same(MapperConfig):
        name = "srht"

    class Others:
        @hookimpl
        def mapping_mappers(self) -> list[type[MapperConfig]]:
            return [Same]

    twice = Registry.of(Components(), Others())
    plain = unstructure(Same(), registry=twice)
    assert plain == {"type": "Others:srht"}
    assert twice.resolve("mapper", plain) == Same()
    assert unstructure(Same()) == {"type": "srht"}


def test_concrete_component_field() -> None:
    """A field annotated with one component class takes its table with or without type, and no other."""

    @define(frozen=True)
    class Holder:
        stop: Stop

    assert structure({"stop": {"patience": 4}}, Holder, registry=REGISTRY) == Holder(Stop(patience=4))
    assert structure({"stop": {"type": "early_stopping"}}, Holder, registry=REGISTRY) == Holder(Stop())
    with pytest.raises(ConfigError, match=r"stop\.type: unknown key"):
        structure({"stop": {"type": "gain"}}, Holder, registry=REGISTRY)


def test_validator_that_needs_a_sibling_at_fault() -> None:
    """A validator that compares with a field that is wrong itself does not hide that field's fault."""

    @define(frozen=True)
    class Between:
        low: int
        high: int = field()

        @high.validator
        def _above(self, _attribute: object, value: int) -> None:
            if value <= self.low:
                raise ValueError("'high' must be above low")

    with pytest.raises(ConfigError, match=r"^low: expected an integer, got 'x' \(str\)$"):
        structure({"low": "x", "high": 2}, Between, registry=REGISTRY)
    with pytest.raises(ConfigError, match=r"^high: must be above low$"):
        structure({"low": 3, "high": 2}, Between, registry=REGISTRY)


def test_check_of_the_whole_is_reported_at_its_table() -> None:
    """An error from __attrs_post_init__ belongs to the table, not to one field."""

    @define(frozen=True)
    class Whole:
        size: int = 0

        def __attrs_post_init__(self) -> None:
            raise ValueError("sizes do not add up")

    with pytest.raises(ConfigError, match=r"^here: sizes do not add up$"):
        structure({}, Whole, registry=REGISTRY, path="here")


def test_validators_that_are_not_attrs_own() -> None:
    """A membership validator whose options are numbers is reported, without a suggestion."""

    @define(frozen=True)
    class Bits:
        bits: int = field(validator=in_((2, 4, 8)))

    with pytest.raises(ConfigError, match=r"^bits: must be in \(2, 4, 8\) \(got 33\)$"):
        structure({"bits": 33}, Bits, registry=REGISTRY)


def test_type_no_toml_can_spell() -> None:
    """A field of a foreign type takes an object of that type and nothing else."""

    @define(frozen=True)
    class Foreign:
        value: complex

    assert structure({"value": 1j}, Foreign, registry=REGISTRY) == Foreign(1j)
    with pytest.raises(ConfigError, match=r"value: expected a complex, got 'x' \(str\)"):
        structure({"value": "x"}, Foreign, registry=REGISTRY)


@define(frozen=True, kw_only=True)
class Unresolvable(CallbackConfig):
    """A component whose annotation is only known to the type checker."""

    name = "unresolvable"
    amount: Decimal | None = None


def test_annotation_only_for_the_type_checker() -> None:
    """A component whose field types cannot be resolved is named, with what to change."""
    with pytest.raises(PluginError, match="Unresolvable: the type of a field cannot be resolved: name 'Decimal'"):
        structure({"type": "unresolvable"}, Unresolvable, registry=REGISTRY)


def test_literal_beside_a_component() -> None:
    """A word a field reserves beside a component is kept as it is; any other string is a component's name."""

    @define(frozen=True)
    class Chosen:
        mapper: MapperConfig | Literal["none"] = "none"
        count: int | Literal["all"] = "all"

    assert structure({"mapper": "none", "count": "all"}, Chosen, registry=REGISTRY) == Chosen()
    assert structure({"mapper": "srht", "count": 3}, Chosen, registry=REGISTRY) == Chosen(Srht(), 3)
    with pytest.raises(ConfigError, match=r"^mapper: no mapper named 'nine' is installed"):
        structure({"mapper": "nine"}, Chosen, registry=REGISTRY)
    with pytest.raises(ConfigError, match=r"^count: expected an integer or one of 'all', got 'some' \(str\)$"):
        structure({"count": "some"}, Chosen, registry=REGISTRY)


def test_unannotated_and_private_fields() -> None:
    """A field is known in a file by the name its constructor takes; one without a type takes anything."""

    @define(frozen=True, auto_attribs=False)
    class Private:
        _size: Any = field()
        computed: int = field(init=False, default=1)

    made = structure({"size": "x"}, Private, registry=REGISTRY)
    assert unstructure(made) == {"size": "x"}
    with pytest.raises(ConfigError, match=r"computed: unknown key \(allowed: size\)"):
        structure({"size": 1, "computed": 2}, Private, registry=REGISTRY)


def test_top_level_must_be_a_table() -> None:
    """Something that is not a table at all is refused where it stands."""
    with pytest.raises(ConfigError, match=r"^trainer: expected a table, got 3 \(int\)$"):
        structure(3, TrainerConfig, registry=REGISTRY, path="trainer")


def write(folder: Path, text: str) -> Path:
    """Write a TOML file and return its path."""
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_load_toml(tmp_path: Path) -> None:
    """A file with names and tables of components is the configuration they describe."""
    path = write(
        tmp_path,
        'target = "package.module:Net"\ndata = "digits"\nlatent_dim = 64\nmapper = "srht"\n'
        '[strategy]\ntype = "layerwise"\nrank = 8\n[trainer]\nmax_epochs = 2\nrun_dir = "here"\n'
        '[[trainer.callbacks]]\ntype = "early_stopping"\npatience = 1\n',
    )
    config = load_toml(path, RunConfig, REGISTRY)
    assert config.strategy == Layers(rank=8)
    assert config.trainer == TrainerConfig(
        max_epochs=2, run_dir=Path("here"), callbacks=(Stop(patience=1),), loss=Auto()
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'target = "a"\ndata = "b"\nlatent_dim = "8"\n',
            r"^latent_dim: expected an integer, got '8' \(str\) \(in .*run",
        ),
        ('target = "a"\nlatent_dim = "8"\n', r"^2 faults \(in .*run.toml\): \(1\) data: missing"),
        ("target = \n", r"run.toml: is not TOML: .*line 1"),
    ],
)
def test_faulty_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    """An error in a file says which file, besides where in it."""
    with pytest.raises(ConfigError, match=message):
        load_toml(write(tmp_path, text), RunConfig, REGISTRY)


def test_unreadable_file(tmp_path: Path) -> None:
    """A missing file and one that is no text are one clear line each."""
    with pytest.raises(ConfigError, match=r"none.toml: cannot be read: No such file"):
        load_toml(tmp_path / "none.toml", RunConfig, REGISTRY)
    tmp_path.joinpath("binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary.toml: is not TOML"):
        load_toml(tmp_path / "binary.toml", RunConfig, REGISTRY)


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=8)
FLOATS = st.floats(allow_nan=False)
VALUES: st.SearchStrategy[object] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
LAYERS = st.builds(
    Layers,
    rank=st.integers(1, 2**62),
    scale=FLOATS,
    label=TEXT,
    on=st.booleans(),
    where=st.none() | st.sampled_from([Path("a"), Path("a/b.c")]),
    colour=st.sampled_from(Colour),
    mode=st.sampled_from(["fast", "slow"]),
    both=st.integers(-9, 9) | TEXT,
    pair=st.tuples(st.integers(-9, 9), FLOATS),
    words=st.lists(TEXT, max_size=3).map(tuple),
    numbers=st.lists(st.integers(-9, 9), max_size=3),
    table=st.dictionaries(TEXT, FLOATS, max_size=3),
    anything=st.dictionaries(TEXT, VALUES, max_size=3),
    inner=st.builds(Inner, size=st.integers(1, 9)),
    nested=st.none() | st.builds(Gain, groups=st.integers()).filter(lambda gain: abs(gain.groups) < 2**62),
)
CALLBACKS = st.lists(st.builds(Stop, patience=st.integers(-9, 9)), max_size=2).map(tuple)


@given(strategy=LAYERS, callbacks=CALLBACKS)
def test_round_trip(strategy: Layers, callbacks: Sequence[Stop]) -> None:
    """What is written as plain data or as TOML is read back as an equal configuration."""
    trainer = TrainerConfig(callbacks=tuple(callbacks), loss=Auto(), prediction=PredictionConfig(policy=Full()))
    config = evolve(run(strategy=strategy), trainer=trainer)
    assert structure(unstructure(config), RunConfig, registry=REGISTRY) == config
    assert structure(tomllib.loads(dump_toml(config)), RunConfig, registry=REGISTRY) == config


def test_toml_cannot_hold_everything() -> None:
    """A value TOML has no word for is refused with its path instead of written wrongly."""

    @define(frozen=True)
    class Limit:
        limit: int | None = 5

    assert unstructure(Limit()) == {"limit": 5}
    with pytest.raises(ConfigError, match=r"^limit: TOML cannot hold"):
        dump_toml(Limit(None))
    with pytest.raises(ConfigError, match=r"^strategy.anything.a\[1\]: TOML cannot hold"):
        dump_toml(run(strategy=Layers(anything={"a": [1, None]})))


def test_run_config_written_in_python_keeps_names() -> None:
    """Built by hand the defaults stay names, which the model and the trainer resolve themselves."""
    config = RunConfig(target="a", data="b", latent_dim=4)
    assert (config.strategy, config.mapper) == ("layerwise", "srht")
    with pytest.raises(ValueError, match="latent_dim"):
        RunConfig(target="a", data="b", latent_dim=-1)
