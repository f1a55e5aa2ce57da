"""The console script: the client's commands, and tune, explain, export, serve, worker, bench and db, each loaded when it is used.

A command whose extra is not installed is listed all the same and says what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tirgemm.errors import MissingExtra

BAD_INPUT = 2
NEEDED = {
    "client": ("tvm_ffi", "httpx", "cryptography", "typer", "rich"),
    "tune": ("tvm", "xgboost", "psutil", "cloudpickle", "sqlalchemy", "alembic", "obstore"),
    "service": ("fastapi", "uvicorn", "pydantic", "pydantic_settings"),
}


@dataclass(frozen=True, slots=True)
class Command:
    """A command by the module and name of its function (or Typer app), with the extras that it needs."""

    name: str
    target: str
    extras: tuple[str, ...]
    summary: str


COMMANDS = (
    Command("tune", "service.commands.tune:tune", ("tune",), "Tune GEMM on a device of this machine."),
    Command(
        "explain",
        "service.commands.explain:explain",
        ("tune",),
        "Tell why a kernel is as fast as it is, without a GPU.",
    ),
    Command("export", "service.commands.export:export", ("client",), "Write a kernel as a single-file library."),
    Command("serve", "service.commands.serve:serve", ("tune", "service"), "Run the service, with a worker beside it."),
    Command("worker", "service.commands.worker:worker", ("tune", "service"), "Run a worker of a service."),
    Command("bench", "service.commands.bench:bench", ("tune",), "Measure a suite of shapes into a results file."),
    Command("ladder", "service.commands.ladder:ladder", ("tune",), "Measure the simt ladder, rung by rung."),
    Command("db", "service.commands.db:app", ("tune",), "Inspect, export, import and merge the tuning database."),
)


def missing(extras: Sequence[str]) -> tuple[str, str] | None:
    """The first extra that is not installed, and the package that is absent."""
    for extra in extras:
        for package in NEEDED[extra]:
            if find_spec(package) is None:
                return extra, package
    return None


def require(name: str, extras: Sequence[str]) -> None:
    """Raise MissingExtra, naming the extra, unless everything that the command needs is installed."""
    found = missing(extras)
    if found is not None:
        extra, package = found
        what = f"`tirgemm {name}`" if name else "the command line"
        raise MissingExtra(f"{what} needs the extra {extra} ({package} is absent): pip install 'tirgemm[{extra}]'")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        require("", ("client",))
    except MissingExtra as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    from tirgemm import _console

    return _console.run(build_app(), arguments)


def build_app() -> Any:
    """The client's app with a group that loads the other commands when they are used."""
    import typer
    from typer.core import TyperGroup

    from tirgemm import cli

    table = {command.name: command for command in COMMANDS}

    class Commands(TyperGroup):
        """The client's commands, then those of the table."""

        def list_commands(self, ctx: Any) -> list[str]:
            return [*super().list_commands(ctx), *table]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in table:
                return load(table[cmd_name])
            return super().get_command(ctx, cmd_name)

    app = typer.Typer(
        name="tirgemm", cls=Commands, help=cli.app.info.help, epilog=cli.app.info.epilog, no_args_is_help=True,
        add_completion=False, pretty_exceptions_enable=False, context_settings=cli.app.info.context_settings,
    )  # fmt: skip
    app.registered_commands = cli.app.registered_commands
    app.registered_callback = cli.app.registered_callback
    return app


def load(command: Command) -> Any:
    """The command as typer runs it; where an extra is missing, one that takes any arguments and says so."""
    import typer

    if missing(command.extras):
        target: Any = _placeholder(command)
    else:
        module, _, name = command.target.partition(":")
        target = getattr(import_module(module), name)
    if isinstance(target, typer.Typer):
        found = typer.main.get_command(target)
        found.name = command.name
        return found
    lenient = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(
        command.name, context_settings=lenient if missing(command.extras) else {"help_option_names": ["-h", "--help"]}
    )(target)
    return typer.main.get_command(app)


def _placeholder(command: Command) -> Any:
    def refuse(arguments: list[str] | None = None) -> None:
        del arguments
        require(command.name, command.extras)

    found = missing(command.extras)
    refuse.__doc__ = f"{command.summary} (needs the extra {found[0] if found else command.extras[0]})"
    return refuse


if __name__ == "__main__":
    sys.exit(main())
