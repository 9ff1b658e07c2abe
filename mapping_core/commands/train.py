"""`mapping train`: train what a TOML file describes."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from mapping_core.config import RunConfig, load_toml
from mapping_core.registry import Registry


@click.command("train")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--resume", metavar="last|best|PATH", help="Go on from a checkpoint of the run.")
def command(file: Path, resume: str | None) -> None:
    r"""Train the run that FILE (TOML) describes.

    FILE may be the resolved.toml that a run leaves in its run_dir: the same run again, or with --resume its rest.

    \b
    latent_dim = 2048
    target = "cnn2"             # or "package.module:Name"
    data = "fashion_mnist"      # or "package.module:function", which returns two loaders
    strategy = "slvt"           # or a table: [strategy], type = "slvt"
    [trainer]
    max_epochs = 12
    run_dir = "runs/first"
    """
    registry = Registry.discover()
    config = load_toml(file, RunConfig, registry)
    # `package.module:Name` is looked for where the command runs, as `python -m` does.
    sys.path.insert(0, str(Path.cwd()))

    from mapping_core.runs import build_trainer  # torch enters here, after the file is known to be right

    trainer = build_trainer(config, registry)
    history = trainer.fit(resume=resume)
    values = "  ".join(f"{name} {value:.4f}" for name, value in history.last.metrics().items())
    click.echo(f"{history.stop_reason}; last epoch: {values}")
    if trainer.config.run_dir is not None:
        click.echo(f"written to {trainer.config.run_dir}")
