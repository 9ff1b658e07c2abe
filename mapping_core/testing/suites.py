"""Suites to inherit: pytest runs every check of a kind on every configuration.

```
from mapping_core.testing import MapperSuite
from my_plugin import Fourier

class TestFourier(MapperSuite):
    component = Fourier
    configs = (Fourier(), Fourier(terms=8))
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mapping_core.components import (
    CallbackConfig,
    Component,
    DynamicsConfig,
    GeneratorConfig,
    LossConfig,
    MapperConfig,
    ModulationConfig,
    PhasePolicyConfig,
)
from mapping_core.testing.checking import checks_of, completed
from mapping_core.testing.worlds import World, world_of

if TYPE_CHECKING:
    import pytest

    from mapping_core.testing.contract import Check


class ComponentSuite:
    """Base of the suites; inherit that of your component's kind.

    `component` is the class, `configs` what is checked of it (by default the component with its
    defaults). `expected_failures` says by a check's name why it does not hold, and it is strict: a
    check that passes after all is a failure. `world` is where it is tried, see `testing.worlds`.
    """

    kind: ClassVar[type[Component]]
    component: ClassVar[type[Component]]
    configs: ClassVar[tuple[Any, ...]] = ()
    expected_failures: ClassVar[Mapping[str, str]] = {}
    world: ClassVar[World | None] = None

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make a test of every pair of a check and a configuration."""
        if "check" not in metafunc.fixturenames:
            return
        import pytest

        checks = {check.__name__: check for check in checks_of(self.kind)}
        if unknown := sorted(self.expected_failures.keys() - checks.keys()):
            raise ValueError(f"expected_failures has no check {', '.join(unknown)}; there are {', '.join(checks)}")
        if not issubclass(self.component, self.kind):
            raise TypeError(f"{type(self).__name__}: {self.component.__name__} is no {self.kind.__name__}")
        marks = {
            name: [pytest.mark.xfail(reason=reason, strict=True)] for name, reason in self.expected_failures.items()
        }
        metafunc.parametrize(
            ("check", "config"),
            [
                pytest.param(check, config, id=f"{name}-{config!r}", marks=marks.get(name, ()))
                for name, check in checks.items()
                for config in self.configs or (self.component(),)
            ],
        )

    def test_contract(self, check: Check[Any, Any], config: Component) -> None:
        """The component keeps what its kind promises."""
        check(completed(config), world_of(self.kind) if self.world is None else self.world)


class MapperSuite(ComponentSuite):
    """The checks of a mapper."""

    kind = MapperConfig


class GeneratorSuite(ComponentSuite):
    """The checks of a generator ("strategy")."""

    kind = GeneratorConfig


class ModulationSuite(ComponentSuite):
    """The checks of a modulation."""

    kind = ModulationConfig


class LossSuite(ComponentSuite):
    """The checks of a loss."""

    kind = LossConfig


class PhasePolicySuite(ComponentSuite):
    """The checks of a phase policy."""

    kind = PhasePolicyConfig


class DynamicsSuite(ComponentSuite):
    """The checks of a dynamics model."""

    kind = DynamicsConfig


class CallbackSuite(ComponentSuite):
    """The checks of a callback."""

    kind = CallbackConfig
