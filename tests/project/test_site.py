"""The documentation as a site: built without a warning, complete, and with nothing that is loaded from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from tests.helpers.scripts import script
from tests.newcomer.pages import all_pages

ROOT = Path(__file__).resolve().parents[2]
# Attributes and rules by which a browser loads something, with an address that names another host.
LOADED = re.compile(
    r"""<(?!a\s)\w+[^>]*?\s(?:src|srcset|href|data|poster)=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|(?:url\(|@import\s+)["']?((?:https?:)?//[^"')\s]+)"""
)
# The theme's script would load these, the first for a page with a diagram of Mermaid's, of which there is none, the
# second in browsers of before 2020.
UNUSED = {"https://unpkg.com/mermaid@11/dist/mermaid.min.js", "https://unpkg.com/resize-observer-polyfill"}


def built(site: Path, **changed: Any) -> Path:
    """The site in a folder, made as ``mkdocs build --strict`` makes it. Raises Abort for a warning."""
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(site), strict=True, **changed)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("site"))


def test_every_page_is_in_the_site_and_its_navigation(site: Path) -> None:
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in all_pages(ROOT) if path.parent != ROOT}
    assert all((site / page).is_file() for page in written)
    linked = {Path(target) for target in re.findall(r'href="([\w/-]+\.html)', (site / "index.html").read_text())}
    assert written | {Path("reference/http.html")} <= linked


def test_the_first_page_begins_as_readme_does(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert '<img alt="Speed over cuBLAS' in text
    assert (site / "speed.svg").read_bytes() == (ROOT / "docs" / "speed.svg").read_bytes()
    begun, _, rest = re.sub(r"<[^>]+>", "", text).partition("make demo")
    assert "signs the winner into one file" in begun
    assert not rest


def loaded_from_elsewhere(text: str) -> Iterator[str]:
    yield from (first or second for first, second in LOADED.findall(text))


def test_a_browser_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css"), *site.rglob("*.svg")]
    assert len(pages) > 30
    assert {page.name: [*loaded_from_elsewhere(page.read_text())] for page in pages} == {
        page.name: [] for page in pages
    }
    assert not [page for page in pages if 'class="mermaid"' in page.read_text()]
    scripts = "".join(path.read_text() for path in site.rglob("*.js"))
    assert set(re.findall(r"""["'](https?://[^"'\s]+\.js|https?://unpkg[^"'\s]+)["']""", scripts)) == UNUSED


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ('<a href="https://siboehm.com">', 0),
        ('<img src="speed.svg"><link rel="stylesheet" href="assets/main.css">', 0),
        ('<script async src="https://unpkg.com/x"></script>', 1),
        ("<link href='//fonts.gstatic.com' rel=preconnect>", 1),
        ("a{background:url(https://x.org/a.png)}@import 'https://x.org/b.css'", 2),
    ],
)
def test_what_a_browser_would_load_from_elsewhere_is_noticed(text: str, count: int) -> None:
    assert len([*loaded_from_elsewhere(text)]) == count


@pytest.mark.parametrize("link", ["nowhere.md", "index.md#nowhere", "/absolute.md"])
def test_a_link_that_leads_nowhere_ends_the_build(link: str, tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text(f"# Here\n\n[there]({link})\n")
    with pytest.raises(Abort, match="warnings in strict mode"):
        built(tmp_path / "site", docs_dir=str(docs), nav=None, hooks=[], theme="mkdocs", plugins=[])


# -- the references ----------------------------------------------------------------------------------


def test_the_reference_has_every_public_name_with_its_signature(site: Path) -> None:
    hooks = script("scripts/site_hooks.py")
    for page, (package, *_) in hooks.PACKAGES.items():
        text = (site / "reference" / f"{page}.html").read_text()
        anchors = set(re.findall(r'<h2 id="([^"]+)"', text))
        assert {f"{package}.{name}" for name in hooks.public_names(package) if name != "__version__"} == anchors
        assert text.count('class="doc-signature') >= len(anchors) // 2


def test_the_reference_of_the_api_has_every_route_and_document(site: Path) -> None:
    document = script("scripts/site_hooks.py").openapi()
    text = re.sub(r"<[^>]+>", "", (site / "reference" / "http.html").read_text())
    routes = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    assert not [name for name in (*routes, *document["components"]["schemas"]) if name not in text]


def test_the_reference_says_types_limits_and_defaults_in_words() -> None:
    request = {
        "description": "A problem.",
        "required": ["gemm"],
        "properties": {
            "gemm": {"type": "string", "maxLength": 9, "description": "a | b"},
            "trials": {"anyOf": [{"type": "integer", "minimum": 1, "exclusiveMaximum": 8.0}, {"type": "null"}]},
            "verify": {"type": "boolean", "default": True},
            "efforts": {"type": "array", "items": {"$ref": "#/components/schemas/Effort"}, "default": []},
        },
    }
    operation = {
        "tags": ["kernels"],
        "description": "Asks.",
        "security": [{"apiKey": ["tune"]}],
        "parameters": [{"name": "wait", "in": "query", "schema": {"type": "number", "default": 0.5}}],
        "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Request"}}}},
        "responses": {"404": {"description": "None."}, "200": {"description": "It.", "content": {"text/html": {}}}},
    }
    schemas = {"Request": request, "Effort": {"enum": ["none", "quick"]}}
    page = script("scripts/site_hooks.py").http_page(
        {"paths": {"/v1/kernels": {"post": operation}}, "components": {"schemas": schemas}}
    )
    assert page.partition("## Kernels")[2].split("\n\n")[1:] == [
        "### `POST /v1/kernels`",
        "Asks.",
        "Scope of the API key: `tune`.",
        "| parameter | in | type | default | meaning |\n| --- | --- | --- | --- | --- |\n"
        "| `wait` | query | number | `0.5` |  |",
        "Body: [Request](#request) (application/json).",
        "| status | when | body |\n| --- | --- | --- |\n| `200` | It. | any (text/html) |\n| `404` | None. |  |",
        "## Documents",
        "### Request",
        "A problem.",
        "| member | type | default | meaning |\n| --- | --- | --- | --- |\n"
        "| `gemm` | string of at most 9 characters | required | a \\| b |\n"
        "| `trials` | integer ≥ 1 < 8 or null |  |  |\n"
        "| `verify` | boolean | `true` |  |\n"
        "| `efforts` | array of [Effort](#effort) | `[]` |  |",
        "### Effort",
        "One of `none`, `quick`.\n",
    ]
