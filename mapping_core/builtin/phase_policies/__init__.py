"""Phase policies in core: `full`, ordinary training from start to end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define

from mapping_core.components import PhasePolicyConfig

if TYPE_CHECKING:
    from mapping_core.contexts import PhasePolicyContext
    from mapping_core.interfaces.phase_policy import PhasePolicy


@define(frozen=True, kw_only=True)
class Full(PhasePolicyConfig):
    """Every step is an ordinary one: forward, backward, optimiser."""

    name = "full"

    def build(self, context: PhasePolicyContext) -> PhasePolicy:
        from mapping_core.builtin.phase_policies.full import FullPolicy

        return FullPolicy()
