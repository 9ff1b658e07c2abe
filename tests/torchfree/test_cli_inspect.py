"""`mapping inspect` works where there is no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

RECIPE = {
    "format": 1,
    "version": "0.1.0",
    "random": 1,
    "latent_dim": 2,
    "seed": 0,
    "base": "seeded",
    "buffers": "frozen",
    "components": {
        "strategy": {"settings": {"type": "lrd", "rank": 8}, "supplier": "mapping-plugin-lrd 0.1.0"},
        "mapper": {"settings": {"type": "srht"}, "supplier": None},
    },
    "weights": 10,
    "layout": "ab",
    "roles": {},
    "base_sha256": "cd",
}


def test_inspect_imports_no_torch(tmp_path: Path) -> None:
    """A file written by hand, of a strategy that is not installed, is shown, and torch and numpy stay out."""
    header = json.dumps(
        {
            "__metadata__": {"mapping_core": json.dumps(RECIPE)},
            "latent": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        }
    ).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    code = (
        "import sys; from mapping_core.cli import main\n"
        f"main(['inspect', {str(path)!r}], standalone_mode=False)\n"
        "print(sorted({'torch', 'numpy', 'safetensors'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    assert "strategy    lrd (rank=8), from mapping-plugin-lrd 0.1.0" in lines
    assert "mapper      srht, from no plugin" in lines
    assert lines[-2] == f"8 bytes of tensors, {path.stat().st_size} in all"
    assert lines[-1] == "[]"
