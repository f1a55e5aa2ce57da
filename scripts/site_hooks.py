"""Hooks of the documentation site (mkdocs.yml): what is generated when it is built.

Its first page begins as README does, to which it adds the table of all pages.
``reference/http.md`` is made of the application's OpenAPI document, ``reference/NAME.md`` of the public names of a
package, whose docstrings mkdocstrings puts in. What is generated cannot differ from the code, so nothing of it is kept.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# Pages of the reference of Python: the package whose ``__all__`` they list, heading, what they are about.
PACKAGES = {
    "python": ("tirgemm", "The library", "What `import tirgemm` gives."),
    "artifact": ("tirgemm.artifact", "Artifacts", "Kernels as signed files: packed, read, loaded, called."),
    "pytorch": (
        "tirgemm.torch",
        "PyTorch",
        "What `import tirgemm.torch` gives. [PyTorch](../pytorch.md) is the guide.",
    ),
    "families": (
        "tirgemm.families",
        "Kernel families",
        "What a family of your own is made of. [Adding a kernel family](../adding-a-family.md) is the guide.",
    ),
}
Schema = Mapping[str, Any]
README_MARKER = "<!-- readme -->"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages to those under docs/."""
    pages = {f"reference/{name}.md": package_page(*about) for name, about in PACKAGES.items()}
    for path, content in {"reference/http.md": http_page(openapi()), **pages}.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, **_event: object) -> str:
    """Puts README's introduction in the place of its marker."""
    return markdown.replace(README_MARKER, introduction((ROOT / "README.md").read_text()))


def introduction(readme: str) -> str:
    """README from behind its heading to the picture, as a page under docs/ has it."""
    _, _, text = readme.partition("\n\n")
    return re.sub(r"(!\[[^\]]*\]\()docs/([^)]*\)).*", r"\1\2", text, flags=re.DOTALL)


# -- the reference of Python -----------------------------------------------------------------------


def package_page(package: str, heading: str, about: str) -> str:
    """A page with every public name of ``package``, each from its docstring."""
    blocks = "\n\n".join(f"::: {package}.{name}" for name in public_names(package) if not name.startswith("_"))
    return f"# {heading}\n\n{about}\n\n{blocks}\n"


def public_names(package: str) -> tuple[str, ...]:
    """``__all__`` of a package, read from its source: importing it may need PyTorch."""
    source = (ROOT.joinpath(*package.split(".")) / "__init__.py").read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    raise ValueError(f"{package} has no __all__")


# -- the reference of the HTTP API -----------------------------------------------------------------


@cache
def openapi() -> dict[str, Any]:
    """The application's OpenAPI document. No service is opened for it: nothing is asked of one."""
    from tirgemm.service.http.state import ServiceState
    from tirgemm.service.server.app import create_app
    from tirgemm.service.settings import Settings

    return create_app(cast(ServiceState, SimpleNamespace(settings=Settings.load()))).openapi()


def http_page(document: Schema) -> str:
    """The page of an OpenAPI document: its operations by tag, then the documents that they take and answer."""
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            section = "\n\n".join(_operation(f"{method.upper()} {path}", operation))
            by_tag.setdefault(operation["tags"][0], []).append(section)
    parts = [
        "# HTTP reference",
        "Generated from the OpenAPI document that a service shows at `/openapi.json`. What is behind it, and examples: "
        "[the HTTP API](../api.md).",
    ]
    for tag, sections in by_tag.items():
        parts += [f"## {tag.capitalize()}", *sections]
    parts.append("## Documents")
    for name, schema in document["components"]["schemas"].items():
        parts += [f"### {name}", *_described(schema), *_members(schema)]
    return "\n\n".join(parts) + "\n"


def _operation(name: str, operation: Schema) -> Iterator[str]:
    yield f"### `{name}`"
    yield from _described(operation)
    scopes = [scope for way in operation.get("security", ()) for needed in way.values() for scope in needed]
    if scopes:
        yield f"Scope of the API key: {', '.join(f'`{scope}`' for scope in scopes)}."
    parameters = [
        (f"`{each['name']}`", each["in"], _type(each["schema"]), _default(each["schema"]), each.get("description", ""))
        for each in operation.get("parameters", ())
    ]
    if parameters:
        yield _table(("parameter", "in", "type", "default", "meaning"), parameters)
    if "requestBody" in operation:
        yield f"Body: {_content(operation['requestBody'])}."
    answers = [
        (f"`{status}`", answer["description"], _content(answer))
        for status, answer in sorted(operation["responses"].items())
    ]
    yield _table(("status", "when", "body"), answers)


def _described(schema: Schema) -> Iterator[str]:
    if schema.get("description"):
        yield schema["description"].strip()


def _members(schema: Schema) -> Iterator[str]:
    """The table of an object's members, or the values of an enumeration."""
    if "enum" in schema:
        yield f"One of {_type(schema)}."
    required = schema.get("required", ())
    rows = [
        (f"`{name}`", _type(of), "required" if name in required else _default(of), of.get("description", ""))
        for name, of in schema.get("properties", {}).items()
    ]
    if rows:
        yield _table(("member", "type", "default", "meaning"), rows)


def _content(body: Schema) -> str:
    kinds = [f"{_type(content.get('schema', {}))} ({kind})" for kind, content in body.get("content", {}).items()]
    return ", ".join(kinds)


def _type(schema: Schema) -> str:
    """A schema in a few words, with a link to the document that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return " ".join([schema.get("format", schema.get("type", "any")), *_limits(schema)])


def _limits(schema: Schema) -> Iterator[str]:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    yield from (f"{sign} {schema[name]:g}" for name, sign in signs.items() if name in schema)
    if "maxLength" in schema:
        yield f"of at most {schema['maxLength']} characters"


def _default(schema: Schema) -> str:
    return f"`{json.dumps(schema['default'])}`" if schema.get("default") not in (None, "") else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
