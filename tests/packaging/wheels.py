"""Build all distributions, install the wheels where nothing else is, and run the example there; then the sdists.

What is checked is what a user gets: the README's first Python block, from site-packages,
outside the checkout. Not a pytest module: it needs an environment of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
TORCH = next(
    line for line in ROOT.joinpath("requirements-dev.txt").read_text(encoding="utf-8").split() if "torch==" in line
)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command and return what it prints; a failure ends the script."""
    print("$", *command, flush=True)  # noqa: T201 - a script
    return subprocess.run([*map(str, command)], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True).stdout


def build(dist: Path) -> list[Path]:
    """Build sdist and, from it, wheel of every distribution, and check their metadata."""
    folders = [ROOT, *sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))]
    for folder in folders:
        run(sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, folder)
    files = sorted(dist.iterdir())
    if len(files) != 2 * len(folders):
        sys.exit(f"expected a wheel and an sdist of each of {len(folders)} distributions, got {files}")
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    return sorted(dist.glob("*.whl"))


def install(environment: Path, wheels: list[Path]) -> Path:
    """Install the wheels with torch into a new environment and return its Python."""
    venv.create(environment, with_pip=True)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    targets = [f"{wheel}[demo]" if wheel.name.startswith("mapping_core-") else str(wheel) for wheel in wheels]
    run(python, "-m", "pip", "install", "--quiet", TORCH, *targets)
    return python


def replace(python: Path, sdists: list[Path]) -> None:
    """Put what the sdists give in the place of the wheels; torch and the like stay."""
    run(python, "-m", "pip", "install", "--quiet", "hatchling>=1.27")  # once, and not for each of them
    options = ["--quiet", "--force-reinstall", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    run(python, "-m", "pip", "install", *options, *sdists)


def check(python: Path, elsewhere: Path) -> None:
    """Ask the installed package what a user would ask it, from a folder outside the checkout."""
    elsewhere.mkdir(parents=True)
    where = Path(run(python, "-c", "import mapping_core; print(mapping_core.__file__)", cwd=elsewhere).strip())
    if ROOT in where.parents and "site-packages" not in where.parts:
        sys.exit(f"mapping_core was imported from the checkout: {where}")
    run(python, "-c", "import mapping_core, sys; assert 'torch' not in sys.modules", cwd=elsewhere)
    report = json.loads(run(python, "-m", "mapping_core", "plugins", "--json", "--strict", cwd=elsewhere))
    plugins = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}
    if missing := plugins - {plugin["distribution"] for plugin in report["plugins"]}:
        sys.exit(f"not found after installing the wheels: {sorted(missing)}")
    # what the wheel must hold beside code: the kit, and the templates of a new plugin
    run(python, "-m", "mapping_core", "check", "mapping-plugin-slvt", cwd=elsewhere)
    run(python, "-m", "mapping_core", "new-plugin", "mine", "--kind", "loss", cwd=elsewhere)
    example = re.search(r"^```python\n(.*?)^```", ROOT.joinpath("README.md").read_text(encoding="utf-8"), re.S | re.M)
    if example is None:
        sys.exit("README.md has no Python example")
    elsewhere.joinpath("example.py").write_text(example[1], encoding="utf-8")
    print(run(python, "example.py", cwd=elsewhere)[-500:])  # noqa: T201 - a script


def main() -> None:
    """Work in the folder given as the only argument."""
    work = Path(sys.argv[1]).resolve()
    elsewhere = work / "elsewhere"
    wheels = build(work / "dist")
    python = install(work / "environment", wheels)
    check(python, elsewhere / "wheels")
    replace(python, sorted((work / "dist").glob("*.tar.gz")))
    check(python, elsewhere / "sdists")


if __name__ == "__main__":
    main()
