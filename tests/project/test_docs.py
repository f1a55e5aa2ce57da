"""The documentation says what the code does: routes, problems, events, examples; its decisions and links."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

import tirgemm.tuning.measure.errors  # noqa: F401 (its codes are told too)
from tests.helpers.artifact_samples import TRUST, packed
from tests.helpers.scripts import script
from tests.project.documented_commands import FENCE, PAGES, page
from tirgemm.artifact import read
from tirgemm.errors import TirgemmError
from tirgemm.events import LOCAL, SENT, Ended, Event, Standing, event_from_json
from tirgemm.gemm import Gemm
from tirgemm.launch import Launch
from tirgemm.service.http import problems
from tirgemm.service.http.documents import JobDocument, KernelDocument, PendingDocument
from tirgemm.timings import Timings

ROOT = Path(__file__).resolve().parents[2]


def examples_script() -> ModuleType:
    return script("scripts/render_api_examples.py")


def schema() -> dict[str, Any]:
    """The API's own description, as the site's reference is made of it."""
    document: dict[str, Any] = script("scripts/site_hooks.py").openapi()
    return document


# -- docs/api.md -----------------------------------------------------------------------------------


def is_page(operation: dict[str, Any]) -> bool:
    """Whether it is told in docs/pages.md."""
    return "pages" in operation.get("tags", [])


def test_every_route_has_a_section_and_every_section_a_route() -> None:
    paths = schema()["paths"]
    served = {
        f"{method.upper()} {path}"
        for path, methods in paths.items()
        for method, operation in methods.items()
        if not is_page(operation)
    }
    assert set(re.findall(r"^### `([A-Z]+ /.*)`$", page("api.md"), re.MULTILINE)) == served
    table = page("api.md").partition("## What holds")[0]
    assert set(re.findall(r"^\| \[`([A-Z]+ /.*?)`\]", table, re.MULTILINE)) == served


def test_every_parameter_and_body_member_is_told() -> None:
    sections = dict(re.findall(r"^### `(.*?)`\n(.*?)(?=^##)", page("api.md"), re.MULTILINE | re.DOTALL))
    for path, methods in schema()["paths"].items():
        for method, operation in methods.items():
            if is_page(operation):
                continue
            section = sections[f"{method.upper()} {path}"]
            for parameter in operation.get("parameters", []):
                if parameter["in"] != "path" and method != "head":
                    assert parameter["name"].lower() in section.lower(), (method, path, parameter["name"])
    parts = {"budget": "BudgetRequest", "queue": "QueueRequest"}
    names = [*schema()["components"]["schemas"]["KernelRequest"]["properties"].keys() - parts.keys()]
    for part, model in parts.items():
        names += [f"{part}.{name}" for name in schema()["components"]["schemas"][model]["properties"]]
    assert not [name for name in names if f"| `{name}` |" not in sections["POST /v1/kernels"]]
    batch = schema()["components"]["schemas"]["BatchRequest"]["properties"].keys()
    assert not [
        name for name in batch if not re.search(rf"^\|[^|]*`{name}[`.]", sections["POST /v1/batches"], re.MULTILINE)
    ]


def test_every_page_is_told_with_what_its_address_may_hold() -> None:
    pages = {
        path: operation
        for path, methods in schema()["paths"].items()
        for operation in methods.values()
        if is_page(operation)
    }
    told = dict(re.findall(r"^\| `(/[^`]*)` \|(.*)\|$", page("pages.md"), re.MULTILINE))
    assert told.keys() == pages.keys()
    for path, operation in pages.items():
        names = {one["name"] for one in operation.get("parameters", []) if one["in"] == "query"}
        assert names == set(re.findall(r"`([a-z_]+)=", told[path])), path


T = TypeVar("T")


def subclasses(base: type[T]) -> Iterator[type[T]]:
    yield base
    for actual in base.__subclasses__():
        if actual.__module__.partition(".")[0] == "tirgemm":
            yield from subclasses(actual)


def service_problems() -> dict[str, int | None]:
    """The codes, with their status where it is a constant, of every Problem(...) and respond(...) in service/."""
    actual: dict[str, int | None] = {code: status for status, code in problems._HTTP_CODES.items()}
    for path in (ROOT / "service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            first, second = {"Problem": (0, 2), "respond": (1, 2)}.get(node.func.id, (99, 99))
            if len(node.args) > second and isinstance(code := node.args[second], ast.Constant):
                argument = node.args[first]
                status = argument.value if isinstance(argument, ast.Constant) else None
                actual[str(code.value)] = status if isinstance(status, int) else None
    return actual


def test_every_problem_code_is_told_with_its_status_and_no_other() -> None:
    told = dict(re.findall(r"^\| `([a-z_]+)` \| (\d+|any) \|", page("api.md"), re.MULTILINE))
    known: dict[str, int | None] = service_problems() | {"invalid_json": 400, "http_error": None}
    known |= {cls.code: cls.status for cls in subclasses(TirgemmError)}
    assert told == {code: str(status or "any") for code, status in known.items()}


def members(event: type[Event]) -> set[str]:
    """What an event may have in its JSON: its fields, those of a standing beside them."""
    names = {field.name for field in fields(event)} | ({"status"} if issubclass(event, Ended) else set())
    return (names - {"standing"}) | ({field.name for field in fields(Standing)} if "standing" in names else set())


def test_every_event_is_told_with_its_members_and_no_other() -> None:
    section = page("api.md").partition("#### The events")[2].partition("## Batches")[0]
    told = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", section, re.MULTILINE))
    assert told.keys() == {event.KIND for event in SENT}
    for event in SENT:
        untold = members(event) - set(re.findall(r"`(\w+)`", told[event.KIND]))
        assert untold <= {"stored"}, event
    documented = {event for event in subclasses(Event) if event.__doc__}
    assert documented == set(subclasses(Event))
    assert {event for event in subclasses(Event) if event.KIND} == {*SENT, *LOCAL}


@pytest.mark.parametrize("event", SENT, ids=lambda event: str(event.KIND))
def test_an_event_comes_back_from_the_wire_as_it_was(event: type[Event]) -> None:
    empty = event.from_json({"phase": "building", "config": "x86(a=1)"})
    assert event_from_json(event.KIND, json.loads(json.dumps(empty.to_json()))) == empty
    assert set(empty.to_json()) <= members(event)


# -- the examples ------------------------------------------------------------------------------------


def test_examples_that_need_no_tuning_are_as_the_service_answers() -> None:
    assert examples_script().differences(examples_script().live_examples(tune=False)) == []


def test_examples_of_a_job_have_the_members_of_its_documents() -> None:
    examples = {name: examples_script().structure(block) for name, block in examples_script().written().items()}
    _, _, kernel = examples["kernel"]
    assert kernel.keys() == KernelDocument.model_fields.keys()
    assert examples["job"][2].keys() == JobDocument.model_fields.keys()
    assert examples["running"][2].keys() == PendingDocument.model_fields.keys()
    assert [kind for kind, _ in examples["events"][2]] == [
        "phase",
        "fallback",
        "started",
        "batch",
        "builds",
        "candidate",
        "race",
        "selected",
        "done",
    ]
    assert [kind for kind, _ in examples["events-resumed"][2]] == ["done"]
    for kind, data in (*examples["events"][2], *examples["cancelled-events"][2]):
        told = re.search(rf"^\| `{kind}` \|.*\| (.*) \|$", page("api.md"), re.MULTILINE)
        assert told is not None, kind
        assert not [name for name in data if f"`{name}`" not in told[1]], kind


def test_the_manifest_that_is_shown_is_of_the_form_that_is_packed() -> None:
    shown = {
        name: json.loads(FENCE.findall(examples_script().written()[name])[0][1].replace(', "…"]', "]"))
        for name in ("manifest", "launch")
    }
    launch = Launch.from_json(shown["launch"])
    assert launch.to_json() == shown["launch"]
    gemm = Gemm.from_json(shown["manifest"]["kernel"]["gemm"])
    data = packed(gemm.with_(act="none"), certificate={"passed": True}, timings=Timings())
    real = read(data, TRUST).manifest.to_json()
    assert real.keys() == shown["manifest"].keys()
    assert real["kernel"].keys() == shown["manifest"]["kernel"].keys()
    for part in ("gemm", "config", "device", "launch", "binary"):
        assert real["kernel"][part].keys() == shown["manifest"]["kernel"][part].keys(), part


def test_a_changed_answer_is_noticed() -> None:
    block = '```http\nGET /x HTTP/1.1\n\nHTTP/1.1 200 OK\nETag: "a"\n\n{"a": [{"b": 1}], "config": {"x": 1}}\n```\n'
    structure = examples_script().structure(block)
    for same in ('"b": 2', '"b": null'):
        assert examples_script().same(structure, examples_script().structure(block.replace('"b": 1', same)))
    for old, new in (('"b"', '"c"'), ("200 OK", "201 Created"), ("ETag", "Age"), ('"b": 1', '"b": 1, "d": 1')):
        assert not examples_script().same(structure, examples_script().structure(block.replace(old, new))), new
    assert examples_script().same(structure, examples_script().structure(block.replace('"x"', '"y"'))), (
        "knobs depend on the machine"
    )


# -- docs/decisions/ -----------------------------------------------------------------------------------


def test_every_decision_has_its_date_and_every_topic_its_row() -> None:
    pages = {path.name: path.read_text() for path in PAGES if path.parent.name == "decisions"}
    index = pages.pop("index.md")
    assert {f"({name})" for name in pages} == set(re.findall(r"\([\w-]+\.md\)", index))
    entries = [(name, entry) for name, text in pages.items() for entry in re.findall(r"^- .*", text, re.MULTILINE)]
    assert len(entries) > 300
    assert not [(name, entry) for name, entry in entries if not re.match(r"- 20\d\d-\d\d-\d\d\. \S", entry)]


def test_a_page_of_decisions_is_one_screen() -> None:
    lines = {path.name: path.read_text().count("\n") for path in PAGES if path.parent.name == "decisions"}
    assert not {name: count for name, count in lines.items() if count > 50}


# -- every page: links and files ---------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    text = FENCE.sub("", path.read_text())
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", re.sub(r"\[`([^`]*)`\]", r"[\1]", path.read_text())))
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_what_stands_within_a_list_item_is_indented_as_the_site_wants_it() -> None:
    """A paragraph or table behind an empty line belongs to the item above only from four spaces on, and the next item
    begins behind an empty line."""
    for path in PAGES:
        text = FENCE.sub("", path.read_text())
        assert not re.findall(r"\n\n {1,3}\S.*|\n\n {4}(?:.+\n)+- .*", text), path.name


def test_every_source_file_that_is_named_exists() -> None:
    """By its path, or the end of its path; CAPITALS stand for a name."""
    folders = ("tirgemm", "service", "tuning_db", "benchmarks", "verification", "scripts", "tests")
    files = [f"/{path.relative_to(ROOT)}" for folder in folders for path in (ROOT / folder).rglob("*.py")]
    named = {
        (path.name, name)
        for path in PAGES
        for name in re.findall(r"`([\w./]+/\w+\.py)\b[^`]*`", path.read_text())
        if not re.search(r"[A-Z]{3,}", name)
    }
    assert len(named) > 50
    assert not [(page, name) for page, name in named if not any(file.endswith(f"/{name}") for file in files)]
