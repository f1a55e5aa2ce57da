"""The console script: the client's commands, and tune, explain, export, serve, worker, bench and db, each loaded when
it is used.

A command whose extra is not installed is listed all the same and says what to install.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tirgemm._extras import absent, missing_extra
from tirgemm._interpreter import collect_seldom
from tirgemm.errors import MissingExtra

BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class Command:
    """A command with the extras that it needs. Its module has its name in ``package``; what runs is the Typer ``app``
    of that, else the function of the same name."""

    name: str
    extras: tuple[str, ...]
    summary: str
    package: str = "tirgemm.service.commands"


CLIENT = "tirgemm._commands"
COMMANDS = (
    Command("tune", ("tune",), "Tune GEMM on a device of this machine."),
    Command("explain", ("tune",), "Tell why a kernel is as fast as it is, without a GPU."),
    Command("candidates", ("tune",), "List every recorded candidate of GEMM with its time."),
    Command("compare", ("client",), "Compare two artifacts, knob by knob."),
    Command("reproduce", ("tune",), "Build a kernel again, and say whether its hash and its figure hold."),
    Command("show", ("client",), "Show what an artifact is, or its source."),
    Command("export", ("client",), "Write a kernel as a single-file library."),
    Command("trust", ("client",), "Say whose kernels are accepted."),
    Command("serve", ("service", "tune"), "Run the service, with a worker beside it."),
    Command("worker", ("service", "tune"), "Run a worker of a service."),
    Command("bench", ("tune",), "Measure a suite of shapes into a results file."),
    Command("ladder", ("tune",), "Measure the simt ladder, rung by rung."),
    Command("jobs", ("client",), "List, watch, cancel, retry and reorder the tuning jobs of a service.", CLIENT),
    Command(
        "batches",
        ("client",),
        "Submit, list, watch and cancel batches of a service: problems that are tuned together.",
        CLIENT,
    ),
    Command("lock", ("client",), "Write down the artifacts that a deployment uses.", CLIENT),
    Command("kernels", ("client",), "List, show, pin and delete kernels of a service or of a tuning database."),
    Command("keys", ("tune",), "Make, list and revoke the API keys of a service; list its audit log."),
    Command(
        "signing",
        ("client",),
        "List, rotate and revoke the keys that artifacts are signed with; revoke artifacts and kernels.",
    ),
    Command("db", ("tune",), "Inspect, export, import, merge, prune and back up the tuning database."),
)


def missing(extras: Sequence[str]) -> tuple[str, str] | None:
    """The first extra that is not installed, and the package that is absent."""
    return next(((extra, package) for extra in extras if (package := absent(extra, find_spec)) is not None), None)


def require(name: str, extras: Sequence[str]) -> None:
    """Raise MissingExtra, naming the extra, unless everything that the command needs is installed."""
    absent = missing(extras)
    if absent is not None:
        extra, package = absent
        raise missing_extra(f"`tirgemm {name}`" if name else "the command line", extra, package)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        require("", ("client",))
    except MissingExtra as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    from tirgemm._terminal import console as shared

    collect_seldom()
    return shared.run(build_app(), arguments)


@cache
def build_app() -> Any:
    """The client's app with a group that loads the other commands when they are used."""
    import typer

    from tirgemm import cli
    from tirgemm._terminal.help import Group, adopt

    table = {command.name: command for command in COMMANDS}

    class Commands(Group):
        """The client's commands, then those of the table."""

        def list_commands(self, ctx: Any) -> list[str]:
            return [*super().list_commands(ctx), *table]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name in table:
                return load(table[cmd_name])
            return super().get_command(ctx, cmd_name)

    adopt(cli.app)
    app = typer.Typer(
        name="tirgemm",
        cls=Commands,
        help=cli.app.info.help,
        epilog=cli.app.info.epilog,
        pretty_exceptions_enable=False,
        context_settings=cli.app.info.context_settings,
    )
    app.registered_commands = cli.app.registered_commands
    app.registered_callback = cli.app.registered_callback
    return app


def load(command: Command) -> Any:
    """The command as typer runs it; where an extra is missing, one that takes any arguments and says so."""
    return _as_typer_runs_it(command, is_lenient=missing(command.extras) is not None)


@cache
def _as_typer_runs_it(command: Command, *, is_lenient: bool) -> Any:
    """Once a process: it takes typer milliseconds to read the annotations of a command."""
    import typer

    from tirgemm._terminal.help import adopt

    if is_lenient:
        target: Any = _placeholder(command)
    else:
        module = import_module(f"{command.package}.{command.name}")
        target = getattr(module, "app", None) or getattr(module, command.name)
    if isinstance(target, typer.Typer):
        group = typer.main.get_command(adopt(target))
        group.name = command.name
        return group
    lenient = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    settings = lenient if is_lenient else {"help_option_names": ["-h", "--help"]}
    app.command(command.name, context_settings=settings)(target)
    return typer.main.get_command(adopt(app))


def _placeholder(command: Command) -> Any:
    def refuse(arguments: list[str] | None = None) -> None:
        del arguments
        require(command.name, command.extras)

    absent = missing(command.extras)
    refuse.__doc__ = f"{command.summary} (needs the extra {absent[0] if absent else command.extras[0]})"
    return refuse


if __name__ == "__main__":
    sys.exit(main())
