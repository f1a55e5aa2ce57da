"""Help of commands and groups, at the width that stdout has; what a bare group says, and a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import typer
from rich.console import RenderableType
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from tirgemm._terminal import console
from tirgemm._terminal.tables import Fields, Paragraph
from tirgemm.errors import Interrupted

_INDENT = 2


class CommandWithHelp(TyperCommand):
    """A command whose help fits the console."""

    def get_help(self, ctx: Any) -> str:
        return rendered(self, ctx)


class Group(TyperGroup):
    """A group whose help fits the console, and that prints it where it is given nothing to do; Ctrl-C is an error."""

    def get_help(self, ctx: Any) -> str:
        return rendered(self, ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(self.get_help(ctx))
            ctx.exit(console.OK)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            near = " or ".join(get_close_matches(args[0], known))
            ctx.fail(f"{ctx.command_path} has no command {args[0]!r:.80}{f'; did you mean {near}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As typer does it; but of KeyboardInterrupt typer makes an exit code, and nobody says what became of it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted") from error


def adopt(app: typer.Typer) -> typer.Typer:
    """``app``, whose groups and commands print their help so."""
    app.info.cls = Group
    for command in app.registered_commands:
        command.cls = CommandWithHelp
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            adopt(group.typer_instance)
    return app


def rendered(command: TyperCommand | TyperGroup, ctx: Any) -> str:
    """The help of ``command``, as long as it is and as wide as stdout."""
    with console.out.capture() as said:
        for number, (title, part) in enumerate(_parts(command, ctx)):
            if number:
                console.out.print()
            if title:
                console.out.print(Text(title, style="bold"))
            console.out.print(part)
    return said.get().rstrip("\n")


def _parts(command: TyperCommand | TyperGroup, ctx: Any) -> Iterator[tuple[str, RenderableType]]:
    """Usage, what it does, arguments, options, commands, epilogue: each with its title."""
    yield "", Paragraph(f"Usage: {ctx.command_path} {' '.join(command.collect_usage_pieces(ctx))}")
    for paragraph in _paragraphs(command.help):
        yield "", Paragraph(paragraph, indent=_INDENT)
    told = [(each, record) for each in command.get_params(ctx) if (record := each.get_help_record(ctx)) is not None]
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        records = [record for each, record in told if each.param_type_name == kind]
        if records:
            yield title, Fields(records, indent=_INDENT)
    if isinstance(command, TyperGroup):
        commands = [(name, command.get_command(ctx, name)) for name in command.list_commands(ctx)]
        summaries = [
            (name, next(_paragraphs(each.help), " ")) for name, each in commands if each is not None and not each.hidden
        ]
        if summaries:
            yield "Commands", Fields(summaries, indent=_INDENT)
    for paragraph in _paragraphs(command.epilog):
        yield "", Paragraph(paragraph)


def _paragraphs(text: str | None) -> Iterator[str]:
    yield from (joined for part in (text or "").split("\n\n") if (joined := " ".join(part.split())))
