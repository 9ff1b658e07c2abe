"""Mappers beside core's `srht`: `hash`, `fastfood`, `seeded`, the non-linear `mlp`, and the trained `trajectory`."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define, field
from attrs.validators import ge, matches_re, optional

from mapping_core import ConfigError, MapperConfig, hookimpl

if TYPE_CHECKING:
    from mapping_core import Mapper
    from mapping_core.contexts import MapperContext

__version__ = "0.1.0"
__all__ = ["Fastfood", "Hash", "Mlp", "Seeded", "Trajectory", "mapping_mappers"]


@define(frozen=True, kw_only=True)
class Hash(MapperConfig):
    """Each weight is a signed sum of `k` of the latent's numbers, each number used equally often.

    The cheapest mapper: for k = 1 one look-up a weight, with 2k bytes of state a weight.
    """

    name = "hash"
    k: int = field(default=1, validator=ge(1))

    def build(self, context: MapperContext) -> Mapper:
        from mapping_plugin_mappers._hash import HashMapper

        return HashMapper(context, k=self.k)


@define(frozen=True, kw_only=True)
class Fastfood(MapperConfig):
    """Signs, Hadamard, permutation, Gaussian, Hadamard.

    Close to a dense Gaussian matrix, at the cost of two transforms. It keeps two bytes of state a weight.
    """

    name = "fastfood"

    def build(self, context: MapperContext) -> Mapper:
        from mapping_plugin_mappers._fastfood import FastfoodMapper

        return FastfoodMapper(context)


@define(frozen=True, kw_only=True)
class Seeded(MapperConfig):
    """A dense matrix of random signs, never stored: `chunk` rows at a time are drawn again in every pass.

    No state, and n x d work each way: for checks against a dense matrix and for short runs.
    """

    name = "seeded"
    chunk: int = field(default=64, validator=ge(1))

    def build(self, context: MapperContext) -> Mapper:
        from mapping_plugin_mappers._seeded import SeededMapper

        return SeededMapper(context, chunk=self.chunk)


@define(frozen=True, kw_only=True)
class Mlp(MapperConfig):
    """Non-linear, after the paper: a layer of `hidden` tanh units, then a linear one.

    By default there are as many units as the latent has numbers.
    """

    name = "mlp"
    hidden: int | None = field(default=None, validator=optional(ge(1)))

    def build(self, context: MapperContext) -> Mapper:
        from mapping_plugin_mappers._mlp import MlpMapper

        return MlpMapper(context, hidden=self.hidden)


def _as_text(path: str | os.PathLike[str]) -> str:
    return os.fspath(path)


@define(frozen=True, kw_only=True)
class Trajectory(MapperConfig):
    """The principal directions of a recorded run, from a file that `trajectory.TrajectoryRecorder` wrote.

    Tens of numbers then go as far as thousands of random directions, but the basis holds a
    trained float a weight for each: worth it where many models share it. `path` is read
    when a model is built, relative to the working folder. `sha256` is the file's; a model's
    file keeps it, so that it is loaded with this basis or not at all.
    """

    name = "trajectory"
    path: str = field(converter=_as_text)
    sha256: str = field(validator=matches_re("[0-9a-f]{64}"))

    @sha256.default
    def _of_the_file(self) -> str:
        if not Path(self.path).is_file():
            raise ConfigError(f"there is no file {self.path}; TrajectoryRecorder.save writes one", path="path")
        with Path(self.path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def build(self, context: MapperContext) -> Mapper:
        from mapping_plugin_mappers._trajectory import TrajectoryMapper

        return TrajectoryMapper(context, path=self.path, sha256=self.sha256)


@hookimpl
def mapping_mappers() -> list[type[MapperConfig]]:
    return [Hash, Fastfood, Seeded, Mlp, Trajectory]
