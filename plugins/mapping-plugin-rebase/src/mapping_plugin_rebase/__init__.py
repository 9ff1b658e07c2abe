"""Re-basing: every now and then, what was learned becomes the base, and the latent starts again under a new mapping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import and_, ge, instance_of

from mapping_core import CallbackConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Callback
    from mapping_core.contexts import CallbackContext

__version__ = "0.1.0"
__all__ = ["Rebase", "mapping_callbacks"]


@define(frozen=True, kw_only=True)
class Rebase(CallbackConfig):
    """Calls `MappingModel.rebase` `times` times, evenly apart, and resets what the optimiser knows of the latent.

    The run then moves in `times` + 1 subspaces one after the other, each of `latent_dim` dimensions, with the
    optimiser's memory of one. A file holds `times` latents more.
    """

    name = "rebase"
    times: int = field(default=3, validator=and_(instance_of(int), ge(1)))

    def build(self, context: CallbackContext) -> Callback:
        from mapping_plugin_rebase._callback import RebaseCallback

        return RebaseCallback(self)


@hookimpl
def mapping_callbacks() -> list[type[CallbackConfig]]:
    return [Rebase]
