"""`resolved.toml`: the options of a run beside its checkpoints, as a file that `mapping train` reads."""

from __future__ import annotations

import datetime
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import mapping_core
from mapping_core.config import dump_toml, unstructure
from mapping_core.training.checkpoint import RESOLVED

if TYPE_CHECKING:
    from mapping_core.training.trainer import MappingTrainer


def write_resolved(run_dir: Path, trainer: MappingTrainer) -> None:
    """Write a run's options, whole or not at all."""
    # Not by `tempfile`, whose files nobody else may read, even after the renaming.
    temporary = run_dir / f".{RESOLVED}-{secrets.token_hex(4)}"
    temporary.write_text(resolved_toml(trainer), encoding="utf-8")
    temporary.replace(run_dir / RESOLVED)


def resolved_toml(trainer: MappingTrainer) -> str:
    """All options of a run that began as a file; for a trainer made in Python, its `[trainer]` table.

    What was given as an object that no file can say is left out, and a comment says so.
    """
    whole = trainer.run_config
    table = unstructure(whole if whole is not None else {"trainer": trainer.config}, registry=trainer.registry)
    unsaid: list[str] = []
    text = dump_toml(_sayable(table, "", unsaid))
    lines = [f"mapping-core {mapping_core.__version__}, torch {torch.__version__}"]
    if whole is None:
        lines.append("made in Python: target, data and mapping are in the script that made it")
    if left_out := [*trainer.given_objects, *unsaid]:
        lines.append(f"left out, given as objects: {', '.join(left_out)}")
    return "".join(f"# {line}\n" for line in lines) + "\n" + text


def _sayable(value: Any, path: str, unsaid: list[str]) -> Any:
    """`value` without what TOML has no word for, whose paths are added to `unsaid`."""
    if isinstance(value, dict):
        items = {key: (f"{path}.{key}" if path else key, item) for key, item in value.items()}
        return {
            key: _sayable(item, place, unsaid)
            for key, (place, item) in items.items()
            if _is_sayable(item, place, unsaid)
        }
    if isinstance(value, list):
        places = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        return [_sayable(item, place, unsaid) for place, item in places if _is_sayable(item, place, unsaid)]
    return value


def _is_sayable(value: Any, path: str, unsaid: list[str]) -> bool:
    if isinstance(value, dict | list | bool | int | float | str | datetime.date | datetime.time):
        return True
    unsaid.append(path)
    return False
