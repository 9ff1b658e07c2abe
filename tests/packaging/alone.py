"""Run tests of core where no plugin is installed, and then each plugin's own tests with core and no other plugin.

One environment serves all: a plugin is installed, tested and removed in turn. Not a
pytest module: it changes what is installed, so tox gives it an environment of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: Tests that need no strategy of a plugin: core is found and configured, and trains with the tests' own components.
_UNITS = ("batches", "gradients", "interfaces", "layout", "loading", "losses", "mappers", "sampling", "state")
CORE = ("torchfree", *(f"unit/test_{name}.py" for name in _UNITS))


def python(*arguments: str) -> str:
    """Run this interpreter from the root and return what it prints; a failure ends the script."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def distributions() -> set[str]:
    """Return the distributions the registry loads, after checking that nothing is broken."""
    report = json.loads(python("-m", "mapping_core", "plugins", "--json", "--strict"))
    return {plugin["distribution"] for plugin in report["plugins"]}


def passes(*paths: Path) -> bool:
    """Whether the tests in these places pass."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def main() -> None:
    """Install, check, test and remove every plugin in turn."""
    folders = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
    if distributions() != {"mapping-core"}:
        sys.exit("start from an environment that has mapping-core and no plugin")
    print("== mapping-core, alone", flush=True)  # noqa: T201 - a script
    if not passes(*(ROOT / "tests" / path for path in CORE)):
        sys.exit("mapping-core: its tests do not pass without plugins")
    for folder in folders:
        print(f"== {folder.name}, alone", flush=True)  # noqa: T201 - a script
        python("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", str(folder))
        try:
            if distributions() != {"mapping-core", folder.name}:
                sys.exit(f"expected mapping-core and {folder.name} alone")
            if not passes(folder / "tests"):
                sys.exit(f"{folder.name}: its tests do not pass without the other plugins")
        finally:
            python("-m", "pip", "uninstall", "--quiet", "--yes", folder.name)


if __name__ == "__main__":
    main()
