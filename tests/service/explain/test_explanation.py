"""What an explanation has: ceilings, waves, collisions, wasted sectors, latency."""

from __future__ import annotations

import importlib
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.service.explain.explained_kernels import A100, H200, SMALL, explained
from tirgemm.analysis.bank_collision import worst_collision
from tirgemm.analysis.banks import wavefronts
from tirgemm.analysis.explanation import Explanation
from tirgemm.analysis.latency import Latency, latency_of
from tirgemm.analysis.memory_traffic import AccessReport, Example
from tirgemm.analysis.roofline import MeasuredTime, Measurements
from tirgemm.config import Config
from tirgemm.errors import BuildFailed
from tirgemm.families import family_named
from tirgemm.families.base import LoadWaits
from tirgemm.gemm import Gemm
from tirgemm.service.explain.drawings import drawings
from tirgemm.service.explain.gather import Report
from tirgemm.service.explain.page import page
from tirgemm.service.explain.reasons import why_sectors
from tirgemm.service.explain.report_text import sections
from tirgemm.service.explain.tables import duration, rate, rounded_to, share, size
from tirgemm.tuning.explain import chosen, explain


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
    assert explanation.main.grid == (128, 1, 1), "as few as take no more waves"
    assert (waves.items, waves.slots, waves.turns, waves.tail) == (cut.tiles, 128, cut.tiles // 128, 128)
    (resources,) = (part for part in sections(Report(explanation)) if part.title == "Resources")
    assert (
        f"waves: {cut.tiles} tiles over 128 at a time: 4.00 waves, all full: 0 % of the places idle" in resources.lines
    )
    assert "unused: 4 SMs, which get no block: so few blocks take no more waves" in resources.lines
    traffic = next(c for c in explanation.roofline.ceilings if c.name == "l2") if explanation.roofline else None
    assert traffic is not None
    moved = 4096 * 4096 * 2 * (4096 // cut.m + 4096 // cut.n + 1)
    assert traffic.amount == moved, "every tile of A and B once a tile of D, D once"


@pytest.mark.parametrize("layout", ["nt", "tn"])
def test_tma_reads_nothing_beyond_the_last_step_of_k(layout: str) -> None:
    gemm = Gemm.parse(f"2040x2056x72:f16:{layout}")
    explanation = explained(gemm, "wgmma", "tile_m=128,tile_n=128,tile_k=64,cluster_m=1,cluster_n=1", compiled=False)
    cut = explanation.cut
    assert cut is not None
    loads = [a for a in explanation.main.memory.accesses if a.detail.startswith("TMA load")]
    read = {operand: sum(a.used_bytes for a in loads if a.operand == operand) for operand in ("a", "b")}
    assert read == {"a": 2 * 2040 * 72 * -(-2056 // cut.n), "b": 2 * 2056 * 72 * -(-2040 // cut.m)}


def test_a_wave_that_is_almost_empty_is_not_said_to_be_none() -> None:
    (words,) = (
        line for line in sections(Report(explained(SMALL, "simt")))[0].notes if "over" in line and "waves" in line
    )
    assert re.fullmatch(r"\d+ blocks over [\d,]+ at a time: 0\.0\d+ waves, 9\d(\.\d)? % of the places empty\.?", words)
    assert [share(part) for part in (0.9954, 0.99999, 1.0, 0.994)] == ["99.5 %", "99.9 %", "100 %", "99 %"]


def test_numbers_have_their_unit_and_no_exponent() -> None:
    assert [size(n) for n in (999, 999_499, 999_600, 2.199e12)] == ["999 B", "999 KB", "1 MB", "2.2 TB"]
    assert [rate(gbps) for gbps in (999.4, 999.7, 4916.7)] == ["999 GB/s", "1 TB/s", "4.92 TB/s"]
    assert [duration(us) for us in (999.94, 999.96, 12345.6)] == ["999.9 us", "1,000 us", "12,346 us"]
    assert [rounded_to(number, 4) for number in (0.12345, 1024, 10_922.7)] == ["0.1235", "1,024", "10,923"]


def test_tiles_that_a_cluster_takes_together_are_counted_in_groups() -> None:
    gemm = Gemm.parse("1024x1024x1024:f16:nt")
    explanation = explained(gemm, "wgmma", "cluster_m=2")
    assert explanation.main.waves is not None
    assert explanation.cut is not None
    assert explanation.main.waves.items * 2 == explanation.cut.tiles
    words = f"{explanation.main.waves.items} groups of 2 tiles over {explanation.main.waves.slots} at a time"
    assert any(words in note for note in sections(Report(explanation))[0].notes)
    (waves,) = (drawing.svg for drawing in drawings(explanation) if drawing.title == "Waves over the SMs")
    count = -(-explanation.main.waves.items // explanation.main.waves.slots)
    assert f"groups of 2 tiles in {count} wave{'s' * (count > 1)} of" in waves
    assert "at a time on each" not in waves, "slots are clusters here, not blocks of an SM"


def test_parts_of_tiles_are_not_called_tiles() -> None:
    explanation = explained(Gemm.parse("129x264x4104:f16:nt:bias"), "wgmma", "split=8,reduction=kernel")
    (waves,) = (line for part in sections(Report(explanation))[:1] for line in part.notes if "waves" in line)
    assert explanation.cut is not None
    assert explanation.coverage is not None
    assert explanation.cut.tiles == 8 * explanation.coverage.tiles
    assert waves.startswith(f"{explanation.cut.tiles} parts of tiles over ")


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
    assert math.prod(actual[0].main.grid) > math.prod(actual[1].main.grid)


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


def test_the_request_that_is_told_wastes_sectors() -> None:
    """The last step of k has a run of 16 bytes a row, the others have whole sectors and are of more."""
    explanation = explained(Gemm.parse("255x253x257:f16:nt"), "mma", compiled=False)
    (part,) = (part for part in sections(Report(explanation)) if part.title == "Global memory of mma_gemm_kernel")
    why = "its lanes touch 4 runs of 16 bytes, 640 bytes apart, and sectors have 32."
    assert part.notes[0] == f"[1] copies of a_packed: {why}"


@pytest.mark.parametrize(
    ("text", "told", "words"),
    [
        (
            "64x64x64:f16:nt:batch=3:stride_a=4104",
            [("a", 16, 128), ("b", 128, 128), ("d", 128, 128)],
            [
                "Rows of a lie 128 bytes apart in each matrix: they begin at multiples of 16, within sectors of 32 "
                "bytes.",
                "Every row of b and d begins a sector where its base address does.",
            ],
        ),
        (
            "1x40x4104:f16:nt",
            [("b", 16, 8208)],
            ["Rows of b lie 8,208 bytes apart: they begin at multiples of 16, within sectors of 32 bytes."],
        ),
        (
            "1x40x4104:f16:nt:batch=3",
            [("a", 16, 8208), ("b", 16, 8208), ("d", 16, 80)],
            [
                f"Rows of {each} bytes apart: they begin at multiples of 16, within sectors of 32 bytes."
                for each in ("a lie 8,208", "b lie 8,208", "d lie 80")
            ],
        ),
    ],
)
def test_rows_are_aligned_as_all_matrices_of_a_batch_have_them(
    text: str, told: list[tuple[str, int, int]], words: list[str]
) -> None:
    explanation = explained(Gemm.parse(text), "mma", "split=1", compiled=False)
    assert [(a.operand, a.nbytes, a.pitch_bytes) for a in explanation.alignments] == told
    (part,) = (part for part in sections(Report(explanation)) if part.title.startswith("Global memory"))
    assert [note for note in part.notes if not note.startswith("[")] == words


def global_row(explanation: Explanation, operand: str) -> dict[str, str]:
    """The first row of ``operand`` in the report's table, by the columns' names."""
    (part,) = (part for part in sections(Report(explanation)) if part.title == "Global memory")
    cells = next(row for row in part.rows if row[0].text == operand)
    return {name: cell.text for (name, _), cell in zip(part.columns, cells, strict=True)}


def test_an_access_that_never_runs_does_not_say_how_the_others_are_aligned() -> None:
    explanation = explained(Gemm.parse("64x10x512:f16:tn:out=f32:batch=3:act=silu"), "wgmma", compiled=False)
    aligned = [a.aligned_bytes for a in explanation.main.memory.accesses if (a.operand, a.op) == ("b", "copy")]
    assert 0 in aligned
    assert global_row(explanation, "b")["aligned"] == "16"


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
    assert "as latency allows" in drawings(replace(compiled, roofline=replace(known, time_us=None)))[0].caption


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


def test_latency_of_a_range_is_of_the_m_at_which_it_is_explained() -> None:
    ranged, small = Gemm.parse("1..4096x64x512:f16:nt"), Gemm.parse("1..4x64x512:f16:nt")
    config = chosen(ranged, H200, "wgmma")
    latency = explain(ranged, config, H200, m=4).latency
    assert latency is not None
    assert latency == latency_of(small, config, H200, "sustained", latency.turns)
    assert latency != latency_of(ranged, config, H200, "sustained", latency.turns)


@pytest.mark.parametrize(
    ("ceiling_us", "turns", "binds"), [(2.0, 1, True), (2.5, 1, False), (5.9, 4, True), (6.1, 4, False)]
)
def test_latency_binds_where_a_ceiling_explains_less_than_half_of_the_least_time(
    ceiling_us: float, turns: int, binds: bool
) -> None:
    latency = Latency(LoadWaits(launch_us=2.0, load_us=0.75, ahead=3, steps=10), turns)
    assert (latency.step_us, latency.waiting_us) == (0.25, 2.5 * turns)
    assert latency.binds(ceiling_us) is binds
