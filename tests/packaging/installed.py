"""A plugin built as a wheel and installed into a folder of its own, as a user's site-packages has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from attrs import define


@define(frozen=True)
class Installed:
    """A folder with an installed plugin, and an empty one to run in."""

    site: Path
    elsewhere: Path

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run this Python with the plugin installed, outside the checkout."""
        environment = {**os.environ, "PYTHONPATH": str(self.site)}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.elsewhere, env=environment, capture_output=True, text=True, check=False)

    def mapping(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command `mapping` there."""
        return self.python("-m", "mapping_core", *arguments)


def install_wheel(project: Path, work: Path) -> Installed:
    """Build the wheel of a project and install that, and nothing else, into a folder below `work`."""
    wheels, site, elsewhere = work / "wheels", work / "site", work / "elsewhere"
    elsewhere.mkdir()
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(project)], check=True
    )
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)], check=True)
    return Installed(site, elsewhere)
