"""``tirgemm explain``: what it tells, as written and as compiled; its page; what it refuses and how it says so."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from tests.helpers.scripts import script
from tirgemm.analysis.bank_collision import worst_collision
from tirgemm.analysis.banks import wavefronts
from tirgemm.analysis.explanation import AS_WRITTEN, Explanation
from tirgemm.analysis.latency import Latency, latency_of
from tirgemm.analysis.memory_traffic import AccessReport, Example
from tirgemm.analysis.roofline import MeasuredTime, Measurements
from tirgemm.analysis.shared_tile import shared_tile
from tirgemm.config import Config
from tirgemm.errors import BuildFailed, InvalidConfig
from tirgemm.families import family_named
from tirgemm.families.base import LoadWaits
from tirgemm.families.wgmma.planning.copies import COPYING_THREADS, copies_of
from tirgemm.families.wgmma.planning.plan import plan
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service import cli
from tirgemm.service.explain.drawings import drawings
from tirgemm.service.explain.gather import Report, config_time
from tirgemm.service.explain.page import illustrated, page
from tirgemm.service.explain.reasons import why_sectors
from tirgemm.service.explain.report_text import sections
from tirgemm.service.explain.tables import share
from tirgemm.timings import SearchSummary, Timings
from tirgemm.tuning.explain import chosen, explain, with_knobs
from tirgemm.tuning.records import Candidate, KernelRecord, Reason, SampleSet, Status
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.rivals import rivals_of

SMALL = Gemm.parse("129x67x31:f16:nt")
A100 = named_device("sm_80")
H200 = named_device("sm_90a")


def explained(gemm: Gemm = SMALL, family: str = "simt", knobs: str = "", **options: Any) -> Explanation:
    device = H200 if family == "wgmma" else A100
    return explain(gemm, chosen(gemm, device, family, knobs), device, **options)


@pytest.fixture(scope="module")
def compiled() -> Explanation:
    return explained(measured=Measurements(MeasuredTime(4.0, "by hand")))


# What it tells


def test_the_whole_is_json_and_says_what_was_read(compiled: Explanation) -> None:
    document = json.loads(json.dumps(compiled.to_json(), allow_nan=False))
    assert (document["gemm"], document["family"], document["compiled"], document["default"]) == (
        str(SMALL),
        "simt",
        True,
        True,
    )
    (kernel,) = document["kernels"]
    assert document["main"] == kernel["symbol"]
    assert kernel["resources"]["registers"] > 0
    assert kernel["opcodes"]["units"]["fp32"] > 0
    conflicting = [a for a in kernel["memory"]["accesses"] if a["conflicts"]]
    assert conflicting
    assert all(a["clash"]["lanes"][0] != a["clash"]["lanes"][1] for a in conflicting)
    assert all(a["clash"] is None for a in kernel["memory"]["accesses"] if not a["conflicts"])


def test_the_mix_as_run_is_in_the_report_the_document_and_the_page() -> None:
    explanation = explained(Gemm.parse("256x256x512:f32:nt"))
    mix = explanation.main.opcodes
    assert mix is not None
    told = explanation.to_json()["kernels"][0]["opcodes"]
    assert told["executed_units"] == dict(mix.executed_units)
    assert told["executed_opcodes"]["FFMA"] > told["units"]["fp32"], "the main loop turns"
    assert max(told["turns"].values()) > 1
    assert told["once"] == []
    (section,) = (part for part in sections(Report(explanation)) if part.title == "Opcodes")
    assert any(line.startswith(f"as run: {mix.executed:,} instructions") for line in section.lines)
    assert any(line.startswith("loops turn: ") for line in section.lines)
    assert f"{mix.executed:,} instructions of a warp" in page(Report(explanation))


def test_the_share_reached_is_of_the_ceiling_that_binds(compiled: Explanation) -> None:
    known = compiled.roofline
    assert known is not None
    assert known.share == pytest.approx(known.bound.us / 4.0)
    lines = [line for part in sections(Report(replace(compiled, latency=None))) for line in (*part.lines, *part.notes)]
    assert any(line.startswith("Bound by ") and "measured 4 us, so" in line for line in lines)
    assert any("(by hand)" in line for line in lines)


def test_ceilings_of_a_measured_kernel_are_at_its_clock(compiled: Explanation) -> None:
    half = explained(measured=Measurements(MeasuredTime(4.0, "by hand", A100.clock_mhz // 2)))
    assert half.roofline is not None
    assert compiled.roofline is not None
    assert half.roofline.ceiling("compute").us == pytest.approx(2 * compiled.roofline.ceiling("compute").us)
    assert half.roofline.ceiling("dram").us == compiled.roofline.ceiling("dram").us, "memory has a clock of its own"
    lines = [line for part in sections(Report(half)) for line in part.lines]
    assert any(
        line.startswith("rates: by formula, of the SMs at the 705 MHz at which it was measured") for line in lines
    )


@pytest.mark.parametrize("family", ["mma", "wgmma"])
def test_the_kernel_that_multiplies_is_known_without_machine_code(family: str) -> None:
    gemm = Gemm.parse("255x253x131:f16:nn")
    device = H200 if family == "wgmma" else A100
    config = chosen(gemm, device, family)
    written, actual = (explain(gemm, config, device, compiled=compiled) for compiled in (False, True))
    assert len(actual.kernels) > 1, "an operand is repacked first"
    assert written.main.symbol == actual.main.symbol == f"{family}_gemm_kernel"


def test_waves_of_a_persistent_kernel_are_of_its_tiles() -> None:
    explanation = explained(Gemm.parse("4096x4096x4096:bf16:nt"), "wgmma", "cluster_m=1,cluster_n=1")
    waves, cut = explanation.main.waves, explanation.cut
    assert waves is not None
    assert cut is not None
    assert cut.tiles == 4096 * 4096 // (cut.m * cut.n)
    assert (waves.items, waves.slots) == (cut.tiles, H200.units)
    assert explanation.main.blocks <= H200.units
    traffic = next(c for c in explanation.roofline.ceilings if c.name == "l2") if explanation.roofline else None
    assert traffic is not None
    moved = 4096 * 4096 * 2 * (4096 // cut.m + 4096 // cut.n + 1)
    assert traffic.amount == moved, "every tile of A and B once a tile of D, D once"


def test_a_wave_that_is_almost_empty_is_not_said_to_be_none() -> None:
    (words,) = (
        line for line in sections(Report(explained(SMALL, "simt")))[0].notes if "over" in line and "waves" in line
    )
    assert re.fullmatch(r"\d+ blocks over [\d,]+ at a time: 0\.0\d+ waves, 9\d(\.\d)? % of the places empty\.?", words)
    assert [share(part) for part in (0.9954, 0.99999, 1.0, 0.994)] == ["99.5 %", "99.9 %", "100 %", "99 %"]


def test_tiles_that_a_cluster_takes_together_are_counted_in_groups() -> None:
    gemm = Gemm.parse("1024x1024x1024:f16:nt")
    explanation = explained(gemm, "wgmma", "cluster_m=2")
    assert explanation.main.waves is not None
    assert explanation.cut is not None
    assert explanation.main.waves.items * 2 == explanation.cut.tiles
    words = f"{explanation.main.waves.items} groups of 2 tiles over {explanation.main.waves.slots} at a time"
    assert any(words in note for note in sections(Report(explanation))[0].notes)
    (waves,) = (drawing.svg for drawing in drawings(explanation) if drawing.title == "Waves over the SMs")
    assert "groups of 2 tiles in 1 wave of" in waves
    assert "at a time on each" not in waves, "slots are clusters here, not blocks of an SM"


def test_what_tvm_cannot_lower_is_said_by_config_and_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of eight halves beyond 2^31 elements, which the space leaves out: TVM's C++ gives up."""
    module = importlib.import_module("tirgemm.families.simt.space")  # the package has a function of that name
    monkeypatch.setattr(module, "_wide_offsets", lambda _: False)
    gemm = Gemm.parse("100000x100000x100000:f16:nt")
    with pytest.raises(
        BuildFailed, match=r"simt.* for 100000x100000x100000:f16:nt was not lowered for sm_80: .*type_name"
    ):
        explained(gemm)


def test_a_default_is_the_one_of_its_regime(monkeypatch: pytest.MonkeyPatch) -> None:
    family = family_named("simt")
    sustained = family.default(SMALL, A100, "sustained")
    isolated = sustained.with_(pad=0)
    monkeypatch.setattr(type(family), "default", lambda *a: isolated if a[-1] == "isolated" else sustained)
    actual = [explain(SMALL, isolated, A100, compiled=False, regime=regime) for regime in ("sustained", "isolated")]
    assert [each.default for each in actual] == [False, True]


def test_a_range_is_explained_at_its_largest_or_where_told() -> None:
    ranged = Gemm.parse("1..513x67x31:f16:nt")
    config = chosen(ranged, A100, "simt")
    actual = [explain(ranged, config, A100, m=m, compiled=False) for m in (0, 1)]
    assert [each.m for each in actual] == [513, 1]
    assert actual[0].main.blocks > actual[1].main.blocks


@pytest.mark.parametrize("width", [4, 8, 16])
def test_a_clash_is_two_lanes_that_want_different_words_of_one_bank(width: int) -> None:
    random = np.random.default_rng(width)
    access = f"load.{8 * width}"
    for _ in range(200):
        addresses = random.integers(0, 64, 32) * width
        active = random.random(32) < 0.8
        report = wavefronts.analyze(addresses, access, active)
        phases = tuple((p.lanes, p.banks, p.wavefronts) for p in report.phases(0))
        shown = tuple(int(a) if on else None for a, on in zip(addresses, active, strict=True))
        collision = worst_collision(Example(shown, phases))
        assert (collision is None) == bool(report.conflicts[0] == 0)
        if collision is None:
            continue
        assert collision.lanes[0] != collision.lanes[1]
        assert collision.words[0] != collision.words[1]
        for lane, address, word in zip(collision.lanes, collision.addresses, collision.words, strict=True):
            assert shown[lane] == address
            assert word % 32 == collision.bank
            assert address <= 4 * word < address + width


def access_at(addresses: list[int], width: int) -> AccessReport:
    shown = next(a for a in explained(compiled=False).main.memory.accesses if a.space == "global")
    return replace(shown, width=width, example=Example(tuple(addresses)))


def test_why_sectors_are_wasted_is_told_from_the_addresses() -> None:
    assert why_sectors(access_at([12 + 2 * lane for lane in range(32)], 2)) == (
        "its 64 bytes lie together, but begin 12 bytes into a sector"
    )
    assert why_sectors(access_at([32 + 2 * lane for lane in range(32)], 2)) == "", "this one wastes nothing"
    strided = why_sectors(access_at([128 * lane for lane in range(32)], 4))
    assert strided == "its lanes touch 32 runs of 4 bytes, 128 bytes apart, and sectors have 32"


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
    assert all(drawing.svg.startswith("<svg") and drawing.words for drawing in drawings(actual))


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
    assert "no thread-value map" in box.words
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


def test_a_small_problem_has_one_verdict_latency_with_its_figures(compiled: Explanation) -> None:
    assert compiled.verdict == compiled.to_json()["verdict"] == "latency"
    known, latency = compiled.roofline, compiled.latency
    assert known is not None
    assert latency is not None
    assert latency.us == pytest.approx(latency.waits.launch_us + latency.waits.steps * latency.waits.load_us)
    summary, roofline = sections(Report(compiled))[:2]
    (small,) = [note for note in summary.notes if "ound by" in note]
    assert small.startswith(
        "Small: bound by latency, not by a ceiling. Launches take about 2 us, and 1 wave of 1 step of k"
    )
    assert "It was measured at 4 us." in small
    assert not [cell for cells in roofline.rows for cell in cells if cell.text == "binds"]
    assert "None of these binds: latency is 2.496 us." in roofline.notes
    assert "as latency allows" in drawings(replace(compiled, roofline=replace(known, time_us=None)))[0].words


def test_latency_is_told_only_where_it_is_known() -> None:
    assert latency_of(SMALL, Config("nobody", ()), A100, "sustained", 1) is None
    as_written = explained(compiled=False)
    assert (as_written.latency, as_written.verdict) == (None, None)
    isolated, sustained = (
        latency_of(SMALL, chosen(SMALL, A100, "simt"), A100, regime, 1) for regime in ("isolated", "sustained")
    )
    assert isolated is not None
    assert sustained is not None
    assert isolated.us > sustained.us, "a launch finds a cold L2"


@pytest.mark.parametrize(
    ("ceiling_us", "turns", "binds"), [(2.0, 1, True), (2.5, 1, False), (5.9, 4, True), (6.1, 4, False)]
)
def test_latency_binds_where_a_ceiling_explains_less_than_half_of_the_least_time(
    ceiling_us: float, turns: int, binds: bool
) -> None:
    latency = Latency(LoadWaits(launch_us=2.0, load_us=0.75, ahead=3, steps=10), turns)
    assert (latency.step_us, latency.waiting_us) == (0.25, 2.5 * turns)
    assert latency.binds(ceiling_us) is binds


# Why the others lost


def record(config: Config, timings: Timings) -> KernelRecord:
    return KernelRecord(SMALL, A100, "sustained", "tuned", config, "a" * 64, "b" * 64, 1, None, timings)


def measured(config: Config, **medians: float) -> Candidate:
    sets = tuple(SampleSet((us,), cast(Reason, reason)) for reason, us in medians.items())
    return Candidate(SMALL, A100.key, "sustained", config, Status.MEASURED, sample_sets=sets)


def test_the_runner_up_is_the_fastest_of_those_measured_alike() -> None:
    config = family_named("simt").default(SMALL, A100, "sustained")
    near, far = config.with_(raster=4), config.with_(raster=8, unroll=16)
    rivals = rivals_of(
        record(config, Timings()), [measured(config, search=5), measured(near, search=6), measured(far, search=5.5)]
    )
    assert rivals.runner_up is not None
    assert (rivals.runner_up.us, rivals.runner_up.reason) == (5.5, "search")
    assert {d.knob for d in rivals.runner_up.differences} == {"raster", "unroll"}
    again = [
        measured(config, search=5, selection=7),
        measured(near, search=6, selection=6.9),
        measured(far, search=5.5),
    ]
    tie = rivals_of(record(config, Timings()), again).runner_up
    assert tie is not None
    assert (tie.us, tie.reason, tie.config) == (6.9, "selection", near)
    assert tie.behind < 0
    words = " ".join(
        line
        for part in sections(Report(explained(compiled=False), "1", rivals_of(record(config, Timings()), again)))
        for line in part.lines
    )
    assert "faster: a tie goes to the simpler config" in words


def test_a_kernel_without_records_has_no_runner_up_and_says_what_it_knows() -> None:
    config = family_named("simt").default(SMALL, A100, "sustained")
    rivals = rivals_of(record(config, Timings(search=SearchSummary(pruned={"lanes": 3}))), [])
    assert rivals.runner_up is None
    assert [(p.rule, p.count, p.sentence, p.config) for p in rivals.pruned] == [("lanes", 3, "", None)]
    assert json.loads(json.dumps(rivals.to_json()))["pruned"][0]["config"] is None


def test_the_time_of_a_config_is_that_of_the_race_that_says_most() -> None:
    store, config = MemoryStore(), family_named("simt").default(SMALL, A100, "sustained")
    assert config_time(store, SMALL, config, A100, "sustained") is None
    store.add_candidate(measured(config, search=5, selection=7, other_regime=1))
    time = config_time(store, SMALL, config, A100, "sustained")
    assert time is not None
    assert time.us == 7
    assert config_time(store, SMALL, config, A100, "isolated") is None


# The command


def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["explain", *arguments, "--data", str(tmp_path / "data")])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_prints_a_report_or_one_document_and_writes_the_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = [str(SMALL), "--device", "sm_80", "--family", "simt"]
    code, out, _ = run(capsys, tmp_path, *options, "--as-written")
    assert code == 0
    assert AS_WRITTEN in out
    assert re.search(r"\[1\] stores of a_tile: lane \d+ at byte \d+ and lane \d+ at byte \d+ want words", out)
    assert "Words and signs" not in out
    file = tmp_path / "page.html"
    code, out, err = run(capsys, tmp_path, *options, "--config", "pad=0", "--html", str(file), "--json")
    document = json.loads(out)
    assert (code, err, document["html"], document["config"]["pad"], document["default"]) == (0, "", str(file), 0, False)
    assert file.read_text().startswith("<!doctype html>")
    assert not (tmp_path / "data").exists(), "explaining a config makes no data folder"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "neither GEMM nor --kernel"),
        (["64x64x64", "--kernel", "ab"], "GEMM '64x64x64' and --kernel 'ab' given"),
        (["--kernel", "ab", "--family", "simt"], "leave out --family simt"),
        (["--kernel", "ab", "--as-written"], "leave out --as-written"),
        (["--kernel", "ab"], "there is no kernel 'ab'"),
        (["0x1x1"], "gemm field m is 0"),
        (["64x64x64", "--device", "sm_70"], "device 'sm_70' is unknown"),
        (["64x64x64", "--device", "cpu"], "device cpu is no GPU"),
        (["64x64x64", "--device", "cpu", "--family", "x86"], "what is explained are GPU kernels"),
        (["64x64x64", "--device", "sm_80", "--family", "sim"], "family 'sim' is unknown; families are"),
        (["64x64x64", "--device", "sm_80", "--family", "x86"], "family x86 does not write 64x64x64:f16:nt for sm_80"),
        (
            ["64x64x64", "--device", "sm_80", "--family", "wgmma"],
            "family wgmma does not write 64x64x64:f16:nt for sm_80",
        ),
        (["64x64x64:f32:nn", "--device", "sm_80", "--family", "wmma"], "family wmma does not write"),
        (["64x64x64", "--device", "sm_80", "--config", "pad=0"], "'pad=0' are of no family"),
        (
            ["64x64x64:f16:nt", "--device", "sm_80", "--config", "pad=0"],
            "are of no family: name it with --family, one of simt, mma, wmma ",
        ),
        (["64x64x64", "--device", "cpu", "--config", "pad=0"], "device cpu is no GPU"),
        (
            ["64x64x64", "--device", "sm_80", "--family", "simt", "--config", "pod=0"],
            "simt has no knob 'pod'; its knobs are",
        ),
        (
            ["64x64x64", "--device", "sm_80", "--family", "simt", "--config", "pad=5"],
            "simt knob pad is '5'; choices for",
        ),
        (["64x64x64", "--device", "sm_80", "--family", "simt", "--config", "pad"], "'pad' is not name=value"),
        (
            ["64x64x64", "--device", "sm_80", "--family", "simt", "--config", "block_m=8,thread_m=16"],
            "rule thread_tile",
        ),
        (
            ["64x64x64", "--device", "sm_80", "--m", "65", "--as-written"],
            "m is 65; 64x64x64:f16:nt has m from 64 to 64",
        ),
        (["64x64x64", "--device", "sm_80", "--regime", "fast"], "regime is 'fast'"),
        (
            ["64x64x64", "--device", "sm_80", "--as-written", "--measured", "absent"],
            "no results file can be read from absent: there is no such folder",
        ),
    ],
)
def test_bad_input_is_refused_with_its_value(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], says: str
) -> None:
    code, out, err = run(capsys, tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert says in err.replace("\n", " ")


def test_an_unknown_id_in_a_store_names_the_newest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from scripts.stored_kernel import gpu_kernel
    from tirgemm.tuning_db.data_folder import open_store

    with open_store(tmp_path / "data") as store:
        known = gpu_kernel(store, str(SMALL)).id
    code, _, err = run(capsys, tmp_path, "--kernel", "feed")
    assert code == 2
    assert f"there is no kernel 'feed'; the newest are {known}" in err.replace("\n", " ")
    code, out, _ = run(capsys, tmp_path, "--kernel", known, "--json")
    assert (code, json.loads(out)["kernel"]) == (0, known)


def test_knobs_are_taken_by_their_words_and_once() -> None:
    family = family_named("simt")
    default = family.default(SMALL, A100, "sustained")
    changed = default.with_(pad=0, pipeline="none")
    assert with_knobs(family, SMALL, A100, default, " pad = 0 , pipeline=None,") == changed
    assert with_knobs(family, SMALL, A100, default, "") == default
    with pytest.raises(InvalidConfig, match="pad is given twice: 0 and '4'"):
        with_knobs(family, SMALL, A100, default, "pad=0,pad=4")


def test_the_examples_of_the_page_have_the_sections_that_the_commands_print() -> None:
    examples = script("scripts/render_explain_examples.py")
    assert examples.differences(examples.PAGE.read_text()) == []


def test_an_example_without_a_section_is_noticed() -> None:
    examples = script("scripts/render_explain_examples.py")
    arguments = f"{SMALL} --device sm_80 --family simt --as-written"
    block = f"<!-- explain:{arguments} -->\n{examples.block(arguments)}<!-- /explain -->"
    assert examples.differences(block) == []
    assert examples.differences(block.replace("Global memory", "Golbal memory"))
    assert examples.differences(block.replace("<!-- run: output -->", ""))
    assert examples.differences(block.replace("block_m=", "block_m=1", 1)), "another config"
    assert examples.differences(block.replace("barriers=", "barriers=1", 1)), "another one in its last line"
    assert examples.differences(block.replace("registers  ", "registers 1", 1)) == [], "a figure"
    assert examples.rendered(block) == block
