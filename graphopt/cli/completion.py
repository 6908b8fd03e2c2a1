"""`graphopt completion`: completion of commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete graphopt's commands and options: eval "$(graphopt completion bash)"."""
    found = get_completion_class(shell)
    assert found is not None, "click knows each of the shells"
    click.echo(found(ctx.find_root().command, {}, "graphopt", "_GRAPHOPT_COMPLETE").source())
