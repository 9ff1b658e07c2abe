"""The seven kinds of component, as configuration: what a plugin registers.

A component is one frozen attrs class that is at once its *configuration* (fields with
validators), its *name*, and its *factory* (`build(context)` returns the object that does
the work). So ``strategy=Slvt()``, ``strategy="slvt"`` and TOML's ``strategy = "slvt"``
are the same thing.

Nothing here imports torch: listing every installed component must stay cheap. `build` is
where a plugin imports its heavy half.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from attrs import define

if TYPE_CHECKING:
    from mapping_core.contexts import (
        CallbackContext,
        DynamicsContext,
        GeneratorContext,
        LossContext,
        MapperContext,
        ModulationContext,
        PhasePolicyContext,
    )
    from mapping_core.interfaces.callback import Callback
    from mapping_core.interfaces.dynamics import DynamicsModel
    from mapping_core.interfaces.generator import Generator
    from mapping_core.interfaces.loss import Loss
    from mapping_core.interfaces.mapper import Mapper
    from mapping_core.interfaces.modulation import Modulation
    from mapping_core.interfaces.phase_policy import PhasePolicy


@define(frozen=True, kw_only=True)
class Component:
    """Base of all seven kinds. Subclass one of the kinds below, not this.

    `kind` and `name` identify a component; a name is unique within its kind.
    """

    kind: ClassVar[str]
    hook: ClassVar[str]
    name: ClassVar[str]

    def build(self, context: Any) -> Any:
        """Return the object that does the work; the heavy imports belong in here."""
        raise NotImplementedError(f"{type(self).__name__} does not implement build(context)")


@define(frozen=True, kw_only=True)
class MapperConfig(Component):
    """A fixed map from a latent to weights, for instance ``srht``."""

    kind: ClassVar[str] = "mapper"
    hook: ClassVar[str] = "mapping_mappers"

    if TYPE_CHECKING:

        def build(self, context: MapperContext) -> Mapper: ...


@define(frozen=True, kw_only=True)
class GeneratorConfig(Component):
    """A strategy: which latent feeds which parameters, for instance ``layerwise``."""

    kind: ClassVar[str] = "generator"
    hook: ClassVar[str] = "mapping_generators"

    def chosen(self) -> tuple[str, ...] | None:
        """Patterns of what this strategy maps where ``mapped=`` says nothing; None: all that no other role takes."""
        return None

    if TYPE_CHECKING:

        def build(self, context: GeneratorContext) -> Generator: ...


@define(frozen=True, kw_only=True)
class ModulationConfig(Component):
    """How a latent modulates what the mapper gives."""

    kind: ClassVar[str] = "modulation"
    hook: ClassVar[str] = "mapping_modulations"

    if TYPE_CHECKING:

        def build(self, context: ModulationContext) -> Modulation: ...


@define(frozen=True, kw_only=True)
class LossConfig(Component):
    """What training minimises, for instance ``cross_entropy``."""

    kind: ClassVar[str] = "loss"
    hook: ClassVar[str] = "mapping_losses"

    if TYPE_CHECKING:

        def build(self, context: LossContext) -> Loss: ...


@define(frozen=True, kw_only=True)
class PhasePolicyConfig(Component):
    """Which phase of training comes next and how long it lasts."""

    kind: ClassVar[str] = "phase_policy"
    hook: ClassVar[str] = "mapping_phase_policies"

    if TYPE_CHECKING:

        def build(self, context: PhasePolicyContext) -> PhasePolicy: ...


@define(frozen=True, kw_only=True)
class DynamicsConfig(Component):
    """A model of the latent's trajectory that proposes jumps."""

    kind: ClassVar[str] = "dynamics_model"
    hook: ClassVar[str] = "mapping_dynamics_models"

    if TYPE_CHECKING:

        def build(self, context: DynamicsContext) -> DynamicsModel: ...


@define(frozen=True, kw_only=True)
class CallbackConfig(Component):
    """An observer of training, for instance ``early_stopping``."""

    kind: ClassVar[str] = "callback"
    hook: ClassVar[str] = "mapping_callbacks"

    if TYPE_CHECKING:

        def build(self, context: CallbackContext) -> Callback: ...


#: The kinds, by the name used in errors and in `Registry`.
KINDS: dict[str, type[Component]] = {
    kind.kind: kind
    for kind in (
        MapperConfig,
        GeneratorConfig,
        ModulationConfig,
        LossConfig,
        PhasePolicyConfig,
        DynamicsConfig,
        CallbackConfig,
    )
}
