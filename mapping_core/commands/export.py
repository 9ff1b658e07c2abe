"""`mapping export`: from a model's file to the weights of its target, as the target's own state dict."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import click

from mapping_core.errors import ConfigError, FileFormatError
from mapping_core.recipe import newer_error, read_header


@click.command("export")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--target", required=True, metavar="NAME", help='Built-in name, or "package.module:Name".')
@click.option("--target-arg", "arguments", multiple=True, metavar="KEY=VALUE", help="Argument of the target (TOML).")
@click.option("--output", required=True, type=click.Path(path_type=Path), help="The safetensors file to write.")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**64 - 1),
    help="Seed of torch before the target is made. [default: the file's, as `mapping train` does]",
)
def command(file: Path, target: str, arguments: tuple[str, ...], output: Path, seed: int | None) -> None:
    """Write the weights that FILE stands for: the state dict of its target, plain safetensors.

    The target must be made as it was in training: a base of its own weights is not in FILE.
    A tensor that the target has under several names is written under each.
    """
    header = read_header(file)
    if header.newer:
        raise newer_error(file, header.recipe)
    given = dict(map(_argument, arguments))
    _check_output(output, file)
    # `package.module:Name` is looked for where the command runs, as `python -m` does.
    sys.path.insert(0, str(Path.cwd()))

    from torch import Tensor  # after the file and the options are known to be right

    from mapping_core.files import write_tensors
    from mapping_core.model import MappingModel
    from mapping_core.runs import build_target

    made = build_target(target, given, seed=header.recipe["seed"] if seed is None else seed)
    state = MappingModel.load(file, made).export_state_dict()
    if extra := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise FileFormatError(f"{output}: safetensors cannot hold the extra state of a module: {', '.join(extra)}")
    try:
        write_tensors(output, state, {"format": "pt"})
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written: {error.strerror or error}", path="--output") from error
    click.echo(f"{len(state):,} tensors, {output.stat().st_size:,} bytes, written to {output}")


def _argument(text: str) -> tuple[str, object]:
    """A key and its value, which is TOML, or else a string.

    >>> _argument("width=9"), _argument("kind=wide")
    (('width', 9), ('kind', 'wide'))
    """
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise ConfigError(f"expected KEY=VALUE, got {text!r}", path="--target-arg")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key, value


def _check_output(output: Path, file: Path) -> None:
    if output.is_dir() or not output.parent.is_dir():
        what = "is a folder" if output.is_dir() else f"there is no folder {output.parent}"
        raise ConfigError(f"{output}: {what}", path="--output")
    if output.exists() and output.samefile(file):
        raise ConfigError(f"{output}: is the file to export, which would be lost", path="--output")
