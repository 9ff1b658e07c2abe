"""`mapping demo`: a minute's training on real digits, and a table of what it gave."""

from __future__ import annotations

import click


@click.command("demo")
@click.option("--epochs", default=40, show_default=True, type=click.IntRange(min=1))
@click.option("--latent-dim", default=2048, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0))
def command(epochs: int, latent_dim: int, seed: int) -> None:
    """Train a small CNN on scikit-learn's digits: directly, and through a latent vector.

    Prints accuracy on the held-out quarter, the numbers that trained, the size of the file
    that holds them, and the median time of a training step.
    """
    from rich.console import Console
    from rich.table import Table

    from mapping_core.demo import run_demo

    table = Table("method", title=f"scikit-learn digits, {epochs} epochs, seed {seed}")
    for heading in ("accuracy", "trainable numbers", "file", "time a step"):
        table.add_column(heading, justify="right")
    for row in run_demo(latent_dim=latent_dim, epochs=epochs, seed=seed, progress=_show(epochs)):
        table.add_row(
            row.method,
            f"{100 * row.accuracy:.1f} %",
            f"{row.numbers:,}",
            f"{row.file_bytes / 1000:.1f} kB",
            f"{row.step_ms:.2f} ms",
        )
    Console().print(table)


def _show(epochs: int) -> bool:
    """Whether to show the trainer's progress: a line an epoch is too much where there is no terminal."""
    from rich.console import Console

    return Console(stderr=True).is_terminal or epochs <= 10
