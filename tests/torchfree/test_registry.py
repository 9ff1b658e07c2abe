"""The registry: discovery, faults that stay in their plugin, names and their errors."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, ClassVar

import attrs
import pytest
from attrs import define

import mapping_core
from mapping_core import (
    AmbiguousComponentError,
    CallbackConfig,
    Component,
    GeneratorConfig,
    MapperConfig,
    PluginError,
    Registry,
    UnknownComponentError,
    hookimpl,
    known_plugins,
)
from mapping_core.components import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Site


@define(frozen=True, kw_only=True)
class Plain(MapperConfig):
    """A mapper that only has a name."""

    name = "plain"


@define(frozen=True, kw_only=True)
class Loud(CallbackConfig):
    """A callback of the plugins below."""

    name = "loud"


def plugin(hook: str, function: Callable[[], object], name: str = "handmade") -> object:
    """Return a plugin object with one hook."""
    return type(name, (), {hook: staticmethod(hookimpl(function))})()


def test_builtins_are_a_plugin_of_core() -> None:
    """Core's own components come through the same door, as distribution mapping-core."""
    registry = Registry.discover()
    own = [entry for entry in registry.entries if entry.distribution == "mapping-core"]
    assert {"srht", "orthogonal"} <= {entry.name for entry in own if entry.kind == "mapper"}
    assert {entry.version for entry in own} == {mapping_core.__version__}
    assert registry.plugins[0].module == "mapping_core.builtin"


def test_installed_plugin_is_found(site: Site, good_plugin: str) -> None:
    """A distribution with an entry point in the group adds its components."""
    module = site.add("third-party", good_plugin, version="2.5")
    registry = Registry.discover()
    (entry,) = [entry for entry in registry.callbacks if entry.name == "quiet"]
    assert (entry.kind, entry.distribution, entry.version, entry.plugin) == ("callback", "third-party", "2.5", module)
    assert registry.callbacks.get("quiet") is entry.component
    assert registry.callbacks.get("third_Party:quiet") is entry.component
    assert "quiet" in registry.callbacks
    assert "third-party:quiet" in registry.callbacks
    (loaded,) = [item for item in registry.plugins if item.distribution == "third-party"]
    assert loaded.components == ("callback:quiet",)
    assert loaded.seconds > 0
    assert registry.problems == ()


def test_registry_is_immutable() -> None:
    """Nothing can be added to a registry once it is made."""
    registry = Registry.of()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        registry.entries = ()  # type: ignore[misc]


def test_every_kind_has_a_catalog() -> None:
    """Each of the seven kinds is reachable by attribute, by name and by class."""
    registry = Registry.discover()
    for kind, cls in KINDS.items():
        by_attribute = getattr(registry, cls.hook.removeprefix("mapping_"))
        assert by_attribute == registry.catalog(kind) == registry.catalog(cls)
        assert by_attribute.names() == tuple(sorted({entry.name for entry in by_attribute}))
        assert len(by_attribute) == len(list(by_attribute))


def test_unknown_kind_names_the_kinds() -> None:
    """A kind that does not exist is answered with those that do."""
    with pytest.raises(UnknownComponentError, match=r"no kind of component is named 'mappers' \(kinds: mapper, gen"):
        Registry.of().catalog("mappers")


BROKEN = {
    "raises": ("raise RuntimeError('no\\n  luck')", "RuntimeError: no luck"),
    "import-error": ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
    "syntax-error": ("def broken(:\n", "SyntaxError"),
    "exits": ("raise SystemExit(3)", "SystemExit: 3"),
    "no-hook": ("x = 1", "registers nothing: mark its mapping_* functions with @hookimpl"),
    "unknown-hook": (
        "from mapping_core import hookimpl\n@hookimpl\ndef mapping_mapers():\n    return []\n",
        "unknown hook 'mapping_mapers'",
    ),
    "unknown-argument": (
        "from mapping_core import hookimpl\n@hookimpl\ndef mapping_mappers(config):\n    return []\n",
        "'config'",
    ),
    "hook-raises": (
        "from mapping_core import hookimpl\n@hookimpl\ndef mapping_mappers():\n    raise KeyError('x')\n",
        "KeyError: 'x'",
    ),
    "returns-none": (
        "from mapping_core import hookimpl\n@hookimpl\ndef mapping_mappers():\n    pass\n",
        "mapping_mappers() must return a list of MapperConfig classes, got None",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_plugin_stays_inside_itself(
    name: str, site: Site, good_plugin: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a plugin does wrong is recorded and logged, and the others still load."""
    code, cause = BROKEN[name]
    module = site.add("bad-plugin", code)
    site.add("good-plugin", good_plugin)
    with caplog.at_level(logging.WARNING, logger="mapping_core"):
        registry = Registry.discover()
    (problem,) = registry.problems
    assert cause in problem.cause
    assert "\n" not in problem.cause
    assert (problem.distribution, problem.version, problem.entry_point) == ("bad-plugin", "1.0", module)
    assert "quiet" in registry.callbacks
    assert all(part in caplog.text for part in ("bad-plugin", repr(module)))
    with pytest.raises(PluginError, match=r"bad-plugin 1\.0: .*MAPPING_BLOCK=bad-plugin"):
        Registry.discover(strict=True)


@pytest.mark.parametrize("name", ["raises", "syntax-error", "hook-raises"])
def test_problem_says_the_line(name: str, site: Site) -> None:
    """The record points at the line of the plugin's own code that failed."""
    module = site.add("bad-plugin", BROKEN[name][0])
    (problem,) = Registry.discover().problems
    line = {"hook-raises": 4}.get(name, 1)
    assert problem.file == f"{site.folder / module}.py:{line}"
    assert problem.file in str(problem)


def bad_results() -> dict[str, tuple[object, str]]:
    """Return hook results that break the contract, and what is said of each."""

    class Shouting(MapperConfig):
        name = "Shouting"

    class Nameless(MapperConfig):
        pass

    class Undecorated(MapperConfig):
        name = "undecorated"
        rank: int = 3

    class Constant(MapperConfig):
        name = "constant"
        limit: ClassVar[int] = 3

    @define(frozen=True, kw_only=True)
    class Typed(MapperConfig):
        name = "typed"
        type: str = "x"

    class Disguised(MapperConfig):
        kind = "generator"
        name = "disguised"

    return {
        "not-a-list": (Plain, "must return a list of MapperConfig classes"),
        "instance": ([Plain()], "expected a subclass of MapperConfig"),
        "other-kind": ([Loud], "expected a subclass of MapperConfig"),
        "disguised": ([Disguised], "expected a subclass of MapperConfig"),
        "bad-name": ([Shouting], "name must be a class attribute"),
        "no-name": ([Nameless], "name must be a class attribute"),
        "undecorated": ([Constant, Undecorated], r"it has fields \(rank\), so decorate it"),
        "type-field": ([Typed], "rename its field 'type'"),
        "twice": ([Plain, Plain], "it already supplies a mapper named 'plain'"),
    }


@pytest.mark.parametrize("name", bad_results())
def test_hook_result_is_checked(name: str) -> None:
    """A hook that returns anything but proper classes of its kind is refused with the reason."""
    result, message = bad_results()[name]
    with pytest.raises(PluginError, match=message):
        Registry.of(plugin("mapping_mappers", lambda: result))


def test_plugin_loads_whole_or_not_at_all(site: Site, good_plugin: str) -> None:
    """When one component is bad, none of its plugin's reach the registry, but their names are known."""
    site.add("half-good", good_plugin.replace("[Quiet]", "[Quiet, object]"))
    registry = Registry.discover()
    assert "quiet" not in registry.callbacks
    with pytest.raises(UnknownComponentError, match=r"; supplied by a plugin that did not load: .* half-good 1\.0"):
        registry.callbacks.get("quiet")


@pytest.mark.parametrize(
    ("requirement", "loads"),
    [
        ("mapping-core>=0.1,<0.2", True),
        ("mapping_core>=99", False),
        ("mapping-core<0.1; python_version < '3'", True),
        ("mapping-core>=99; extra == 'future'", True),
        ("numpy>=999", True),
        ("mapping-core >>> 1", False),
    ],
)
def test_incompatible_requirement(requirement: str, loads: bool, site: Site, good_plugin: str) -> None:
    """A plugin made for another mapping-core is not imported, and the record says which it needs."""
    module = site.add("third-party", good_plugin, requires=(requirement,))
    registry = Registry.discover()
    assert ("quiet" in registry.callbacks) is loads
    assert (module in sys.modules) is loads
    if not loads:
        assert requirement.replace("_", "-") in registry.problems[0].cause


def test_block_and_allow_act_before_the_import(site: Site, good_plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plugin kept out by an argument or the environment is never imported; built-ins always are."""
    module = site.add("Third_Party", good_plugin)
    kept_out = [
        Registry.discover(block=["third-party"]),
        Registry.discover(allow=["another"]),
        Registry.discover(allow=[]),
    ]
    monkeypatch.setenv("MAPPING_BLOCK", "another, third.party")
    kept_out.append(Registry.discover(allow=["third-party"]))
    monkeypatch.setenv("MAPPING_BLOCK", "")
    monkeypatch.setenv("MAPPING_PLUGINS", "another")
    kept_out.append(Registry.discover())
    assert module not in sys.modules
    for registry in kept_out:
        assert "third-party" in registry.blocked
        assert "quiet" not in registry.callbacks
        assert "srht" in registry.mappers
    monkeypatch.setenv("MAPPING_PLUGINS", "third-party")
    assert "quiet" in Registry.discover().callbacks


def test_blocked_supplier_is_named(site: Site) -> None:
    """Asking for what a blocked plugin of ours supplies says that it is blocked, not to install it."""
    site.add("mapping-plugin-lrd", "")
    with pytest.raises(UnknownComponentError, match="mapping-plugin-lrd supplies it but is kept out") as caught:
        Registry.discover(block=["mapping-plugin-lrd"]).generators.get("lrd")
    assert "pip install" not in str(caught.value)


def test_two_distributions_one_name(site: Site, good_plugin: str) -> None:
    """Both are kept; using the bare name is the error, and the qualified one works."""
    site.add("first-one", good_plugin)
    site.add("second-one", good_plugin)
    registry = Registry.discover(strict=True)
    assert registry.callbacks.names().count("quiet") == 1
    message = "monitor: 2 distributions supply a callback named 'quiet'; write 'first-one:quiet' or 'second-one:quiet'"
    with pytest.raises(AmbiguousComponentError, match=message):
        registry.callbacks.get("quiet", path="monitor")
    first, second = (registry.callbacks.get(f"{name}-one:quiet") for name in ("first", "second"))
    assert (first.__module__, second.__module__) == ("first_one", "second_one")


def test_builtins_get_no_precedence(site: Site) -> None:
    """A plugin that reuses a built-in's name makes it ambiguous instead of losing or winning silently."""
    site.add(
        "other-srht",
        "from mapping_core import MapperConfig, hookimpl\nclass Other(MapperConfig):\n    name = 'srht'\n"
        "@hookimpl\ndef mapping_mappers():\n    return [Other]\n",
    )
    with pytest.raises(AmbiguousComponentError, match="'mapping-core:srht' or 'other-srht:srht'"):
        Registry.discover().mappers.get("srht")


def test_one_distribution_cannot_supply_a_name_twice(site: Site, good_plugin: str) -> None:
    """Two entry points of one distribution with one name: the second is a problem, the first stays."""
    site.add("third-party", good_plugin, entry_points={"one": "third_party", "two": "third_party"})
    registry = Registry.discover()
    assert "quiet" in registry.callbacks
    assert "callback 'quiet' is already supplied by entry point 'one'" in registry.problems[0].cause


def test_damaged_metadata_hides_nobody_else(site: Site, good_plugin: str) -> None:
    """Unreadable metadata of one distribution leaves every other plugin listed."""
    site.add("good-plugin", good_plugin)
    site.add("aa-damaged", "")
    site.folder.joinpath("aa_damaged-1.0.dist-info", "entry_points.txt").write_bytes(b"[mapping_core]\nx = \xff\xfe\n")
    assert "quiet" in Registry.discover().callbacks
    assert Registry.discover().generators.names() == Registry.discover(block=["aa-damaged"]).generators.names()


def test_missing_name_in_metadata(site: Site, good_plugin: str) -> None:
    """A plugin whose METADATA lost its name still loads, as distribution unknown."""
    site.add("nameless", good_plugin)
    site.folder.joinpath("nameless-1.0.dist-info", "METADATA").write_text("", encoding="utf-8")
    (entry,) = [entry for entry in Registry.discover().callbacks if entry.name == "quiet"]
    assert entry.distribution == "unknown"


class Narrow(GeneratorConfig):
    """A strategy, for the hints below."""

    name = "narrow"


def test_unknown_name_hints() -> None:
    """The error names what is installed, the nearest name, another kind, and what to install."""
    registry = Registry.of(
        plugin("mapping_generators", lambda: [Narrow], "a"), plugin("mapping_mappers", lambda: [Plain], "b")
    )
    with pytest.raises(UnknownComponentError, match=r"no generator named 'narow' .*installed: narrow.*mean 'narrow'\?"):
        registry.generators.get("narow")
    with pytest.raises(UnknownComponentError, match="'plain' is a mapper"):
        registry.generators.get("plain")
    with pytest.raises(UnknownComponentError, match="did you mean 'a:narrow'"):
        registry.generators.get("c:narrow")
    with pytest.raises(UnknownComponentError, match=r"\(installed: none\); pip install mapping-plugin-dynamics"):
        registry.dynamics_models.get("kalman")


@pytest.mark.parametrize(
    ("kind", "name", "distribution"),
    [
        ("generator", "slvt", "mapping-plugin-slvt"),
        ("generator", "grouped", "mapping-plugin-layerwise"),
        ("modulation", "low_rank", "mapping-plugin-modulation"),
        ("loss", "stability", "mapping-plugin-mapping-loss"),
        ("phase_policy", "sampled", "mapping-plugin-phases"),
        ("dynamics_model", "kalman", "mapping-plugin-dynamics"),
    ],
)
def test_own_plugins_are_offered(kind: str, name: str, distribution: str) -> None:
    """A name of one of our own plugins is answered with the distribution to install."""
    with pytest.raises(UnknownComponentError, match=f"pip install {distribution}$"):
        Registry.of().catalog(kind).get(name)


def test_old_version_of_our_own_plugin(site: Site, good_plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution of ours that is installed but too old to have the component is to be upgraded."""
    monkeypatch.setitem(known_plugins.KNOWN, "mapping-plugin-forecasts", {"dynamics_model": ("newest",)})
    site.add("mapping-plugin-forecasts", good_plugin)
    with pytest.raises(UnknownComponentError, match=r"pip install --upgrade mapping-plugin-forecasts$"):
        Registry.discover().dynamics_models.get("newest")


def test_broken_plugin_is_quoted_when_its_name_is_asked_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name the broken plugin supplies is answered with the cause, not with pip install."""
    monkeypatch.setitem(known_plugins.KNOWN, "mapping-plugin-own", {"generator": ("own",)})
    site.add("mapping-plugin-own", "raise ImportError('libfoo is gone')")
    registry = Registry.discover()
    with pytest.raises(UnknownComponentError, match=r"mapping-plugin-own 1.0: ImportError: libfoo is gone") as caught:
        registry.generators.get("own")
    assert "pip install" not in str(caught.value)
    with pytest.raises(UnknownComponentError) as caught:
        registry.mappers.get("banana")
    assert "libfoo" not in str(caught.value), "it is known not to supply a mapper"


def test_resolve_takes_instance_name_and_table() -> None:
    """The three ways to write a component give equal instances, by kind's name or class."""
    registry = Registry.of(plugin("mapping_mappers", lambda: [Plain]))
    instance = Plain()
    assert registry.resolve("mapper", instance) is instance
    assert registry.resolve(MapperConfig, "plain") == registry.resolve("mapper", {"type": "plain"}) == instance
    with pytest.raises(UnknownComponentError, match=r"^mapper: no mapper named 'plane'"):
        registry.resolve("mapper", "plane", path="mapper")


def test_of_refuses_a_broken_plugin() -> None:
    """Plugins handed over as objects are the caller's own, so a fault is raised at once."""
    with pytest.raises(PluginError, match="plugin 'handmade'"):
        Registry.of(plugin("mapping_mappers", lambda: None))


def test_component_without_build_says_so() -> None:
    """A component class that forgot build(context) names itself when it is used."""
    component: Component = Plain()
    with pytest.raises(NotImplementedError, match="Plain does not implement build"):
        component.build(None)
