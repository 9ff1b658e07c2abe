"""The project of a new plugin, written from templates: it works, is tested and can be published as it is."""

from __future__ import annotations

import re
import string
import zlib
from importlib import resources
from pathlib import Path

from attrs import define
from packaging.version import Version

import mapping_core
from mapping_core.components import KINDS
from mapping_core.errors import ConfigError

_PREFIX = "mapping-plugin-"


@define(frozen=True)
class Example:
    """What the generated component of a kind does, in one sentence, and its one setting (with another value)."""

    summary: str
    setting: str
    validator: str
    other: str


EXAMPLES: dict[str, Example] = {
    "mapper": Example(
        "A dense Gaussian map as a mapper.", "terms: int = field(default=1, validator=ge(1))", "ge", "terms=3"
    ),
    "generator": Example(
        "A latent for matrices and one for vectors as a strategy.",
        "share: float = field(default=0.2, validator=gt(0.0))",
        "gt",
        "share=0.5",
    ),
    "modulation": Example(
        "One factor for all weights as a modulation.",
        "strength: float = field(default=0.1, validator=gt(0.0))",
        "gt",
        "strength=0.5",
    ),
    "loss": Example(
        "The smooth absolute error as a loss.", "beta: float = field(default=1.0, validator=gt(0.0))", "gt", "beta=0.1"
    ),
    "phase_policy": Example(
        "A warm-up and then ordinary steps as a phase policy.",
        "steps: int = field(default=100, validator=ge(1))",
        "ge",
        "steps=3",
    ),
    "dynamics_model": Example(
        "A straight line through the last steps as a dynamics model.",
        "window: int = field(default=8, validator=ge(1))",
        "ge",
        "window=2",
    ),
    "callback": Example(
        "An end where the training loss no longer falls, as a callback.",
        "patience: int = field(default=3, validator=ge(1))",
        "ge",
        "patience=1",
    ),
}

#: The class of `mapping_core` that a kind's `build` returns, and the suite that checks it.
RUNTIMES = {
    "mapper": ("Mapper", "MapperSuite"),
    "generator": ("Generator", "GeneratorSuite"),
    "modulation": ("Modulation", "ModulationSuite"),
    "loss": ("Loss", "LossSuite"),
    "phase_policy": ("PhasePolicy", "PhasePolicySuite"),
    "dynamics_model": ("DynamicsModel", "DynamicsSuite"),
    "callback": ("Callback", "CallbackSuite"),
}


def plugin_files(name: str, kind: str) -> dict[str, str]:
    """Return the files of a new plugin's project, by their path in it.

    `name` is the component's, or the distribution's (`mapping-plugin-` in front is left out). Raises
    `ConfigError` for a name that cannot be a component's, or for an unknown kind.

    >>> sorted(plugin_files("low-pass", "mapper"))[-2:]
    ['tests/test_contract.py', 'tox.ini']
    """
    short = name.removeprefix(_PREFIX)
    component = short.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", component):
        raise ConfigError(f"{name!r}: use lower-case letters, digits and -, beginning with a letter", path="NAME")
    if kind not in KINDS:
        raise ConfigError(f"{kind!r} is none of {', '.join(KINDS)}", path="--kind")
    example, config = EXAMPLES[kind], KINDS[kind].__name__
    package = f"mapping_plugin_{component}"
    version = Version(mapping_core.__version__)
    words = {
        "distribution": _PREFIX + component.replace("_", "-"),
        "package": package,
        "name": component,
        "cls": "".join(part.capitalize() for part in component.split("_")),
        "kind_in_words": kind.replace("_", " "),
        "config": config,
        "runtime": RUNTIMES[kind][0],
        "suite": RUNTIMES[kind][1],
        "context": config.removesuffix("Config") + "Context",
        "hook": KINDS[kind].hook,
        "summary": example.summary,
        "setting": example.setting,
        "validator": example.validator,
        "other": example.other,
        "purpose": f"{zlib.crc32(package.encode()):08X}",
        "major": version.major,
        "minor": version.minor,
        "next_minor": version.minor + 1,
    }
    templates = {
        "pyproject.toml": "pyproject.toml",
        "README.md": "README.md",
        "tox.ini": "tox.ini",
        ".gitignore": "gitignore",
        ".github/workflows/test.yml": "test.yml",
        f"src/{package}/__init__.py": "init.py",
        f"src/{package}/_{component}.py": f"{kind}.py",
        "tests/test_contract.py": "test_contract.py",
    }
    files = {path: _filled(template, words) for path, template in templates.items()}
    return {**files, f"src/{package}/py.typed": ""}


def write_plugin(name: str, kind: str, parent: Path) -> Path:
    """Write a new plugin's project below `parent` and return its folder; nothing that is there is written over."""
    files = plugin_files(name, kind)
    folder = parent / (_PREFIX + name.removeprefix(_PREFIX).replace("_", "-"))
    if folder.exists():
        raise ConfigError(f"{folder}: is there already", path="NAME")
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def _filled(template: str, words: dict[str, object]) -> str:
    text = resources.files("mapping_core").joinpath("templates", f"{template}.txt").read_text(encoding="utf-8")
    return string.Template(text).substitute(words)
