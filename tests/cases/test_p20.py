"""P20: a run file with an unknown key, a wrong type and an unknown component."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mapping_core import ConfigError, Registry, RunConfig, UnknownComponentError
from mapping_core.config import load_toml

if TYPE_CHECKING:
    from pathlib import Path

HEAD = 'target = "cnn"\ndata = "digits"\nlatent_dim = 64\nmodulation = "srht"\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[trainer]\nmax_epoch = 3\n", r"trainer\.max_epoch: unknown key; did you mean 'max_epochs'\? \(allowed: "),
        ('[trainer]\nmax_epochs = "3"\n', r"trainer\.max_epochs: expected an integer, got '3' \(str\)"),
        ("[trainer]\nmax_epochs = 2.0\n", r"trainer\.max_epochs: expected an integer, got 2\.0 \(float\)"),
        ("[trainer]\nmax_epochs = true\n", r"trainer\.max_epochs: expected an integer, got True \(bool\)"),
        ('mapper = "shrt"\n', r"mapper: no mapper named 'shrt' is installed \(.*srht.*\); did you mean 'srht'\?"),
        ('[mapper]\ntype = "shrt"\n', r"mapper\.type: no mapper named 'shrt' .*did you mean 'srht'\?"),
        ('[mapper]\ntype = "srht"\nsead = 3\n', r"mapper\.sead: unknown key"),
    ],
)
def test_each_fault_says_path_allowed_and_nearest(line: str, message: str, tmp_path: Path) -> None:
    """Source: facts measured on cattrs, which reads "8", 8.9 and True as integers and calls an unknown name missing."""
    path = tmp_path / "run.toml"
    path.write_text(HEAD + line, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        load_toml(path, RunConfig, Registry.discover())
    assert "\n" not in str(caught.value)
    assert "modulation: no modulation named 'srht' is installed" in str(caught.value)
    assert "'srht' is a mapper" in str(caught.value)


def test_unknown_component_is_its_own_error() -> None:
    """A lone unknown component is an UnknownComponentError with the path, so that a program can react to it."""
    with pytest.raises(UnknownComponentError) as caught:
        Registry.discover().resolve("mapper", {"type": "shrt"}, path="mapper")
    assert caught.value.path == "mapper.type"
