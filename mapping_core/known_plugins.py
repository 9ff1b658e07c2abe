"""Which of the project's own distributions supplies which component, to say what to install.

Only hints for messages stand here: nothing is looked up through this table, so a name
missing from it costs a hint and nothing else.
"""

from __future__ import annotations

from packaging.utils import canonicalize_name

#: distribution -> kind -> names
KNOWN: dict[str, dict[str, tuple[str, ...]]] = {
    "mapping-plugin-slvt": {"generator": ("slvt",)},
    "mapping-plugin-layerwise": {"generator": ("layerwise", "grouped")},
    "mapping-plugin-lrd": {"generator": ("lrd",)},
    "mapping-plugin-mappers": {"mapper": ("hash", "fastfood", "seeded", "mlp", "trajectory")},
    "mapping-plugin-pruning": {"generator": ("pruned",), "callback": ("pruning",)},
    "mapping-plugin-modulation": {
        "modulation": ("additive", "affine", "low_rank", "gain", "block_scale"),
        "generator": ("finetune",),
    },
    "mapping-plugin-mapping-loss": {"loss": ("mapping", "stability", "smoothness", "alignment")},
    "mapping-plugin-quantize": {"generator": ("quantized",), "callback": ("quantize",)},
    "mapping-plugin-phases": {"phase_policy": ("adaptive", "bandit", "fixed", "sampled")},
    "mapping-plugin-rebase": {"callback": ("rebase",)},
    "mapping-plugin-dynamics": {
        "dynamics_model": ("linear", "ols", "subspace", "dmd", "kalman", "none", "random", "lookahead", "ema")
    },
}


def distribution_for(kind: str, name: str) -> str | None:
    """Return the distribution of ours that supplies this component, or None.

    >>> distribution_for("generator", "lrd")
    'mapping-plugin-lrd'
    >>> distribution_for("loss", "lrd") is None
    True
    """
    return next((dist for dist, kinds in KNOWN.items() if name in kinds.get(kind, ())), None)


def names_of(distribution: str) -> tuple[str, ...]:
    """Return the components a distribution of ours supplies, as ``kind:name``.

    >>> names_of("Mapping_Plugin_SLVT")
    ('generator:slvt',)
    """
    kinds = KNOWN.get(canonicalize_name(distribution), {})
    return tuple(f"{kind}:{name}" for kind, names in kinds.items() for name in names)
