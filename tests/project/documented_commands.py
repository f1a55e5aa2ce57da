"""The pages, and the commands of ``tirgemm`` with their options, for the tests of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tirgemm.tuning.measure.errors  # noqa: F401 (its codes are told too)
from tests.newcomer.pages import all_pages

ROOT = Path(__file__).resolve().parents[2]

PAGES = all_pages(ROOT)

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text()


def fences(*languages: str) -> Iterator[tuple[Path, str]]:
    """Every fenced block of these languages with its page."""
    for path in PAGES:
        yield from ((path, text) for language, text in FENCE.findall(path.read_text()) if language in languages)


@cache
def commands() -> dict[str, Any]:
    """Every command by its words."""
    from typer.main import get_command

    from tirgemm.service.cli import build_app

    actual: dict[str, Any] = {}

    def walk(command: Any, words: tuple[str, ...]) -> None:
        if hasattr(command, "list_commands"):
            for name in command.list_commands(None):
                walk(command.get_command(None, name), (*words, name))
        else:
            actual[" ".join(words)] = command

    walk(get_command(build_app()), ())
    return actual


def root_options() -> set[str]:
    """The options of ``tirgemm`` itself."""
    from typer.main import get_command

    from tirgemm.service.cli import build_app

    return options_of(get_command(build_app()))


def options_of(command: Any) -> set[str]:
    return {
        name
        for parameter in command.params
        if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False)
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
