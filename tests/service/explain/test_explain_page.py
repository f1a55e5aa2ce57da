"""The page of an explanation: its pictures, their keys, and the terms that it explains."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tests.service.explain.explained_kernels import A100, explained
from tirgemm.analysis.explanation import Explanation
from tirgemm.analysis.shared_tile import shared_tile
from tirgemm.families.wgmma.planning.copies import COPYING_THREADS, copies_of
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.gemm import Gemm
from tirgemm.service.explain.drawings import drawings
from tirgemm.service.explain.gather import Report
from tirgemm.service.explain.page import illustrated, page
from tirgemm.service.explain.report_text import sections
from tirgemm.tuning.explain import chosen, explain

# The page


class Elements(HTMLParser):
    """Tags, and whether every one was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def test_the_page_is_whole_and_takes_nothing_from_elsewhere(compiled: Explanation) -> None:
    text = page(Report(compiled, "<id>"))
    actual = Elements()
    actual.feed(text)
    assert not actual.open
    assert not {"script", "link", "img", "iframe", "object"} & set(actual.tags)
    assert not [name for name, _ in actual.attributes if name.startswith("on") or name in ("src", "xlink:href")]
    assert all((value or "").startswith("#") for name, value in actual.attributes if name == "href")
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme:dark" in text
    assert text.count("<style>") == 1, "its own: pictures have none"
    assert "style" not in {name for name, _ in actual.attributes}
    assert "&lt;id&gt;" in text


@pytest.mark.parametrize("family", ["simt", "wgmma"])
def test_the_page_has_the_pictures(family: str, compiled: Explanation) -> None:
    actual = compiled if family == "simt" else explained(Gemm.parse("512x512x512:f16:nt"), "wgmma")
    titles = [drawing.title for drawing in drawings(actual)]
    wanted = ["Roofline", "Waves over the SMs", "Banks: ", "The shared tile of A"]
    wanted += ["The copy of A"] if family == "simt" else ["The box of a"]
    for want in wanted:
        assert any(title.startswith(want) for title in titles), (want, titles)
    assert all(drawing.svg.startswith("<svg") and drawing.caption for drawing in drawings(actual))


def test_what_wgmma_copies_without_tma_has_its_map() -> None:
    explanation = explained(Gemm.parse("512x512x516:f16:nt"), "wgmma", "load=copy", compiled=False)
    titles = [drawing.title for drawing in drawings(explanation)]
    assert "The copy of A" in titles
    assert not [title for title in titles if title.startswith("The box of a")]
    tile = shared_tile(explanation.gemm, explanation.config, explanation.device)
    assert tile is not None
    assert tile.copy is not None
    copies, owner = (
        copies_of(plan(explanation.gemm, explanation.config, explanation.device.units), "a"),
        tile.copy.owner(),
    )
    for thread in range(COPYING_THREADS):
        first = copies.column(thread)
        assert (owner[copies.row(thread), first : first + copies.elements] == thread).all()


def test_tmas_box_stands_where_a_map_of_threads_and_values_would_and_says_so() -> None:
    explanation = explained(Gemm.parse("512x512x512:f16:nt"), "wgmma", compiled=False)
    (box,) = (drawing for drawing in drawings(explanation) if drawing.title.startswith("The box of"))
    assert "no thread-value map" in box.caption
    assert "bytes each, 128-byte swizzle" in box.svg
    told = explanation.to_json()["kernels"][0]["boxes"]
    assert {"a", "b", "d"} <= {each["tensor"] for each in told}
    assert all(each["row_bytes"] == each["columns"] * each["element_bytes"] for each in told)


def test_the_shared_tile_is_shown_plain_padded_and_permuted() -> None:
    gemm = Gemm.parse("1024x1024x1024:f16:nt")
    explanation = explain(gemm, chosen(gemm, A100, "mma"), A100, compiled=False)
    tile = next(drawing.svg for drawing in drawings(explanation) if drawing.title.startswith("The shared tile"))
    assert re.findall(r">(plain rows|padded|permuted, as here): ", tile) == [
        "plain rows",
        "padded",
        "permuted, as here",
    ]


def test_pictures_stand_in_the_sections_that_speak_of_them(compiled: Explanation) -> None:
    by_section = {
        section.title: [picture.title for picture in pictures]
        for section, pictures in illustrated(sections(Report(compiled)), drawings(compiled))
    }
    assert by_section["Roofline"] == ["Roofline"]
    assert by_section["Resources"] == ["Waves over the SMs"]
    assert by_section["Global memory"] == ["The copy of A"]
    assert {title.partition(":")[0].partition(",")[0] for title in by_section["Shared memory"]} == {
        "Banks",
        "The shared tile of A",
    }
    assert by_section["What it is"] == by_section["Opcodes"] == []
    rendered = page(Report(compiled))
    heads = [rendered.index(f">{title}</h2>") for title in ("Roofline", "Shared memory", "Resources")]
    assert (
        heads[0]
        < rendered.index('aria-label="Picture: Roofline"')
        < heads[1]
        < rendered.index("Banks: store")
        < heads[2]
    )


def test_every_colour_of_a_picture_is_in_its_key(compiled: Explanation) -> None:
    for picture in drawings(compiled):
        kinds = {kind for kind, _ in picture.key}
        told = {kind.removeprefix("line ") for kind in kinds} | (
            {f"h{hue}" for hue in range(8)} if "hues" in kinds else set()
        )
        used = {kind for classes in re.findall(r'class="([^"]*)"', picture.svg) for kind in classes.split()}
        lines_of_axes = {"l"} if picture.title == "Roofline" or "Waves" in picture.title else set()
        assert used - {"tg", "t", "s", "m", "e", "n"} - lines_of_axes <= told, picture.title


# What the words mean


def test_the_words_of_a_report_are_explained_and_no_others(compiled: Explanation) -> None:
    *_, knobs, words = sections(Report(compiled))
    told = {line.partition(": ")[0] for line in words.lines}
    assert {"nt", "wavefront", "bank", "LDS, STS .64 .128", "latency"} <= told
    assert not {"TMA", "HMMA.16816.F32", "warpgroup", "ldmatrix, stmatrix .x4 .trans"} & told
    shown = [tuple(cell.text for cell in cells) for cells in knobs.rows]
    assert [(name, value) for name, value, _ in shown] == [(name, str(value)) for name, value in compiled.config.knobs]
    assert all(meaning for _, _, meaning in shown)
    wgmma = sections(Report(explained(Gemm.parse("512x512x512:f16:nt"), "wgmma", compiled=False)))[-1]
    assert {"TMA", "wgmma mMnNkK", "swizzle"} <= {line.partition(": ")[0] for line in wgmma.lines}


def test_every_abbreviation_of_a_report_is_among_its_words(compiled: Explanation) -> None:
    wgmma = explained(Gemm.parse("512x512x512:f16:nt"), "wgmma", compiled=False)
    for explanation in (compiled, wgmma):
        *parts, words = sections(Report(explanation))
        names = " ".join(line.partition(": ")[0] for line in words.lines)
        # Opcodes of the mix are told by "other opcodes".
        told = [part for part in parts if part.title != "Opcodes"]
        texts = [text for part in told for text in (part.title, *part.lines, *part.heads, *part.notes)]
        texts += [cell.text for part in told for cells in part.rows for cell in cells]
        used = {name for text in texts for name in re.findall(r"\b[A-Z]{2}[A-Z0-9]*\b", text.replace("SMs", "SM"))}
        plain = {
            "NVIDIA",
            "A100",
            "SXM4",
            "H200",
            "GHz",
            "GB",
            "TB",
            "KB",
            "MB",
            "FMA",
            "TFLOP",
            "GFLOP",
            "MFLOP",
            "IR",
            "CUDA",
        }
        assert {name for name in used - plain if name not in names} == set()
