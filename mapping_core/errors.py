"""Typed errors: every one names the thing, the place and the fix.

All derive from `MappingError`, so a program can catch what this package raises on
purpose and nothing else. Those that report a bad value are `ValueError` too, since
that is what callers of a library expect.
"""

from __future__ import annotations


class MappingError(Exception):
    """Base of everything mapping-core raises on purpose."""


class ConfigError(MappingError, ValueError):
    """A configuration value is unknown, of the wrong type or out of range.

    `path` says where it stands, for instance ``"trainer.max_epochs"`` (empty when the
    fault is not at one place).
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class UnknownComponentError(ConfigError):
    """No installed plugin supplies a component of this kind and name."""


class AmbiguousComponentError(ConfigError):
    """Two distributions supply a component of this kind and name; say which one."""


class PluginError(MappingError):
    """A plugin could not be loaded, or a component broke its contract."""


class TargetError(MappingError, ValueError):
    """The target module cannot be mapped as asked."""


class BudgetError(MappingError, ValueError):
    """`latent_dim` does not fit the target or the strategy."""


class DataError(MappingError, ValueError):
    """A data loader or a batch is not what training needs."""


class LossError(MappingError, ValueError):
    """A loss cannot be computed from these predictions and targets."""


class NonFiniteError(MappingError):
    """The loss or its gradient is NaN or infinite."""


class DivergenceError(MappingError):
    """Training diverges, and nothing that was tried against it helped."""


class CallbackError(MappingError):
    """A callback raised; the message names the callback and the hook."""


class CheckpointError(MappingError):
    """A checkpoint cannot be written, or the run cannot go on from it."""


class FileFormatError(MappingError, ValueError):
    """A file is damaged, foreign, newer than this version, or made for another target."""


class MissingPackageError(MappingError, ImportError):
    """An optional package is needed for what was asked; the message has the command that installs it."""
