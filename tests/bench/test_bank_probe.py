"""The probe of the bank model: its kernels make the one access each that they are for, and its judgement follows the
counts."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from benchmarks.bank_probe import REPEATS, SOURCE, ProbedAccess, documented, probes, variants
from benchmarks.counted import ncu
from benchmarks.counted.document import faults
from benchmarks.counted.metrics import BY_NAME
from tirgemm.analysis.banks.wavefronts import MODELS, BankModel
from tirgemm.analysis.sass.disassembler import disassembly
from tirgemm.errors import MeasurementFailed
from tirgemm.tuning.driver.nvrtc import compile_source

MODEL = MODELS["sm_90a"]
PROBES = probes("sm_90a")
OPCODES = {"load": "LDS", "store": "STS", "ldmatrix": "LDSM", "stmatrix": "STSM", "cp.async": "LDGSTS"}
WIDTHS = {1: "U8", 2: "U16", 8: "64", 16: "128"}


def counted_as(model: BankModel) -> list[ncu.ProfiledLaunch]:
    """What the profiler would show if the hardware were ``model``."""
    return [
        ncu.ProfiledLaunch(
            probe.kernel,
            "(1, 1, 1)",
            "(32, 1, 1)",
            {BY_NAME[name].metrics[0]: count for name, count in probe.counts(model).items()},
        )
        for probe in PROBES
    ]


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a"])
def test_every_kernel_is_a_loop_round_the_one_access(arch: str) -> None:
    wanted = {probe.kernel: probe for probe in probes(arch)}
    text = disassembly(compile_source(SOURCE.read_text(), arch, name=SOURCE.name).data)
    bodies = re.split(r"\.section\s+\.text\.(\w+)", text)[1:]
    seen = dict(zip(bodies[::2], bodies[1::2], strict=True))
    assert seen.keys() == wanted.keys()
    for name, probe in wanted.items():
        # What a predicate turns off altogether (@!PT) comes with cp.async.
        matches = re.findall(r"^(?!.*@!PT).*\b((?:LDSM|STSM|LDGSTS|LDS|STS)\b\S*)", seen[name], re.MULTILINE)
        assert len(matches) == 1, name
        parts = matches[0].split(".")
        assert parts[0] == OPCODES[probe.access.operation]
        if probe.access.of_matrices:
            assert ("MT88" in parts) == probe.access.transposed
            assert (parts[-1] if parts[-1].isdigit() else "1") == str(probe.access.matrices)
        else:
            assert WIDTHS.get(probe.access.width, parts[-1]) == parts[-1]
        assert len(re.findall(r"\bBRA\b", seen[name])) >= 2, "the loop is not unrolled"


def test_probes_have_names_of_their_own_and_stay_in_the_kernel_s_memory() -> None:
    assert len({probe.name for probe in PROBES}) == len(PROBES) > 100
    for probe in PROBES:
        assert 0 <= probe.addresses.min() <= probe.addresses.max() + probe.access.width <= 32768
        if probe.sources is not None:
            assert probe.sources.max() + probe.access.width <= 1 << 20
    assert f"#define REPEATS {REPEATS}\n" in SOURCE.read_text()


def test_counts_like_the_model_s_are_all_right_and_make_a_results_file() -> None:
    document, lines = documented(PROBES, counted_as(MODEL), MODEL, {})
    assert list(faults(document)) == []
    first, *_ = lines
    right, judged = map(int, re.findall(r"\d+", first))
    assert right == judged == 3 * len(PROBES) - sum(probe.access.past_l1 for probe in PROBES)
    assert not [line for line in lines if line.startswith("wrong")]


@pytest.mark.parametrize("name", [name for name in variants(MODEL) if name != "the model"])
def test_hardware_that_is_another_variant_is_told(name: str) -> None:
    _, lines = documented(PROBES, counted_as(variants(MODEL)[name]), MODEL, {})
    shares = {
        line.partition(":")[0]: tuple(map(int, re.findall(r"(\d+) of (\d+)", line)[0]))
        for line in lines
        if " right" in line
    }
    assert shares[name][0] == shares[name][1]
    assert all(right < judged for other, (right, judged) in shares.items() if other != name)
    assert any(line.startswith("wrong: ") for line in lines)


def test_launches_that_are_not_the_probes_are_refused() -> None:
    launches = counted_as(MODEL)
    for wrong in (launches[:-1], [replace(launches[0], kernel="other"), *launches[1:]]):
        with pytest.raises(MeasurementFailed, match="not the"):
            documented(PROBES, wrong, MODEL, {})


def test_what_is_predicted_is_of_all_repeats() -> None:
    probe: ProbedAccess = next(probe for probe in PROBES if probe.name == "load.128 one bank")
    assert probe.counts(MODEL) == {
        "shared_loads": REPEATS,
        "shared_load_wavefronts": 32 * REPEATS,
        "shared_load_conflicts": 28 * REPEATS,
    }
