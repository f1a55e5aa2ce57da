"""The documentation of settings and commands, and its snippets of shell and Python."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

import tirgemm.tuning.measure.errors  # noqa: F401 (its codes are told too)
from tests.project.documented_commands import PAGES, commands, fences, options_of, page, root_options
from tirgemm.gemm import Gemm
from tirgemm.service.settings import Settings


def test_every_setting_is_told_with_its_variable_and_its_option() -> None:
    rows = dict(re.findall(r"^\| `TIRGEMM_(\w+)` \|(.*)$", page("operating.md"), re.MULTILINE))
    assert {name.lower() for name in rows} == Settings.model_fields.keys()
    options = {name.strip("-").replace("-", "_") for row in rows.values() for name in re.findall(r"`(--[a-z-]+)", row)}
    of_serve = {parameter.name for parameter in commands()["serve"].params} - {"as_json", "verbose"}
    assert options == of_serve


def test_every_command_has_a_section_with_its_options_and_no_others() -> None:
    text = page("operating.md")
    sections = dict(re.findall(r"^### tirgemm (\w+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL))
    assert sections.keys() == {name.partition(" ")[0] for name in commands()}
    for head, section in sections.items():
        mine = [command for name, command in commands().items() if name.partition(" ")[0] == head]
        told = {part for span in re.findall(r"`(-[^` ]+)`", section) for part in span.split("/")}
        assert told == set().union(*map(options_of, mine)), head
    for group, common in (
        ("db", {"--data", "--db", "--json"}),
        ("jobs", {"--url", "--json"}),
        ("batches", {"--url", "--json"}),
        ("kernels", {"--url", "--data", "--db", "--json"}),
    ):
        rows = dict(re.findall(rf"^\| `tirgemm ({group} \w+)` \|(.*)\|$", sections[group], re.MULTILINE))
        assert rows.keys() == {name for name in commands() if name.startswith(f"{group} ")}
        for name, row in rows.items():
            told = {part for span in re.findall(r"`(--[^` ]+)`", row) for part in span.split("/")}
            assert told | common == options_of(commands()[name]), name


def shell_commands() -> list[tuple[str, list[str]]]:
    """Every ``tirgemm ...`` in a shell block, the image's runs included, as its page and its arguments."""
    actual = []
    for path, block in fences("sh", "bash", "shell"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if "docker" in words and "run" in words and "tirgemm" in words:
                words = [*words[words.index("tirgemm") :]]
                words = words if len(words) > 1 else ["tirgemm", "serve"]
            if words[:1] == ["tirgemm"]:
                actual.append((path.name, words[1:]))
    return actual


def test_every_shell_command_parses() -> None:
    actual = shell_commands()
    assert len(actual) > 15
    for where, words in actual:
        if words[0].startswith("-"):
            assert words == words[:1], (where, words)
            assert words[0] in root_options(), (where, words)
            continue
        groups = {name.partition(" ")[0] for name in commands() if " " in name}
        head = " ".join(words[:2]) if words[0] in groups else words[0]
        assert head in commands(), (where, words)
        command, arguments = commands()[head], words[len(head.split()) :]
        arguments = [argument.replace("...", "AAAA") for argument in arguments]
        context = command.make_context(head, arguments)
        if context.params.get("gemm"):
            Gemm.parse(context.params["gemm"])


@pytest.mark.parametrize("words", [["tune", "7x5x3", "--trails", "4"], ["get"], ["serve", "--port", "many"]])
def test_a_command_that_would_not_parse_is_noticed(words: list[str]) -> None:
    import typer

    with pytest.raises(typer.TyperException):
        commands()[words[0]].make_context(words[0], words[1:])


def test_every_command_named_in_the_text_exists() -> None:
    for path in PAGES:
        for line in re.findall(r"`tirgemm ([a-z]+(?: [a-z]+)?)[^`]*`", path.read_text()):
            first, _, second = line.partition(" ")
            assert first in {name.partition(" ")[0] for name in commands()}, (path.name, line)
            assert first != "db" or not second or line in commands(), (path.name, line)


def defined(module: str) -> set[str]:
    """The names at the top of a module, read from its source where importing it would load TVM or PyTorch."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    if module.partition(".")[0] != "tirgemm" or module == "tirgemm":
        return set(dir(import_module(module))) | set(getattr(import_module(module), "__all__", ()))
    assert spec.origin is not None
    names: set[str] = set()
    for node in ast.parse(Path(spec.origin).read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def test_every_python_snippet_compiles_and_names_what_exists() -> None:
    blocks = list(fences("python", "py"))
    assert len(blocks) > 5
    for path, block in blocks:
        tree = ast.parse(block, filename=path.name)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                # PyTorch has an environment of its own.
                names = {alias.name for alias in node.names} - {"torch"}
                assert all(importlib.util.find_spec(name) for name in names), (path.name, block)
            elif isinstance(node, ast.ImportFrom):
                assert not {alias.name for alias in node.names} - defined(node.module or ""), (path.name, node.module)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("tirgemm", "tirgemm.torch"):
                owner = ast.unparse(node.value)
                known = node.attr in defined(owner) or importlib.util.find_spec(f"{owner}.{node.attr}") is not None
                assert known, (path.name, ast.unparse(node))
