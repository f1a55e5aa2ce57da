"""The GPU's baseline ``cutlass`` as far as it goes without a GPU: templates, operands, headers, the compiler."""

from __future__ import annotations

import importlib.util
import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tirgemm.gemm import Gemm
from tirgemm.hardware import ARCHITECTURES
from tirgemm.tuning.measure.baselines import cutlass_baseline, cutlass_build
from tirgemm.tuning.measure.baselines.cutlass_baseline import TEMPLATES, CutlassBaseline, macros, unsupported
from tirgemm.tuning.measure.baselines.cutlass_build import DoesNotCompile, headers, libraries
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable
from tirgemm.tuning.measure.baselines.tuned_baseline import Refused
from tirgemm.tuning.verify.plan import layout_of

_WARP = 32


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the two headers that are looked at, on Python's path."""
    include = tmp_path / "site" / "cutlass_library" / "source" / "include" / "cutlass"
    include.mkdir(parents=True)
    (include / "cutlass.h").write_text("")
    (include / "version.h").write_text("#define CUTLASS_MAJOR 4\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return include.parent


def fake_nvcc(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """An nvcc that notes its arguments; ``body`` is shell, in which $out is the file to write."""
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    tool = folder / "nvcc"
    tool.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo release 13.0; exit; fi\necho "$@" >> {log}\n'
        'while [ "$1" != -o ]; do shift; done\nout=$2\n' + body
    )
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return log


def test_templates_are_unlike_and_fit_a_block() -> None:
    assert len(set(TEMPLATES)) == len(TEMPLATES)
    for t in TEMPLATES:
        warps = t.tile_m // t.warp_m * (t.tile_n // t.warp_n)
        assert t.tile_m % t.warp_m == t.tile_n % t.warp_n == 0
        assert warps in (4, 8)
        assert t.shared_bytes <= ARCHITECTURES["sm_90a"].limits.shared_per_block
        # fp32 sums of a thread.
        assert t.tile_m * t.tile_n // (warps * _WARP) <= 128
    assert sum(t.shared_bytes <= ARCHITECTURES["sm_86"].limits.shared_per_block for t in TEMPLATES) >= 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512x256x128:f16:nt", "RowMajor ColumnMajor 8 8 8 half_t half_t float"),
        ("512x256x128:bf16:tn:out=f32", "ColumnMajor RowMajor 8 8 4 bfloat16_t float float"),
        # Rows of A hold k, those of B n: both count what divides them, their distance and the base.
        ("512x250x132:f16:nn", "RowMajor RowMajor 4 2 2 half_t half_t float"),
        ("512x256x128:f16:nt:lda=130:acc=f16", "RowMajor ColumnMajor 2 8 8 half_t half_t half_t"),
        ("512x256x128:f16:nt:align=4", "RowMajor ColumnMajor 2 2 2 half_t half_t float"),
        ("512x256x128:f16:tt:beta:ldc=257", "ColumnMajor ColumnMajor 8 8 1 half_t half_t float"),
        ("512x256x128:f16:nt:batch=2:stride_b=32772", "RowMajor ColumnMajor 8 4 8 half_t half_t float"),
    ],
)
def test_a_template_gets_the_layouts_dtypes_and_accesses_of_the_problem(text: str, expected: str) -> None:
    actual = macros(Gemm.parse(text), TEMPLATES[0])
    names = ("LAYOUT_A", "LAYOUT_B", "ALIGN_A", "ALIGN_B", "ALIGN_D", "ELEMENT", "OUTPUT", "SUMS")
    assert " ".join(actual[name].removeprefix("cutlass::") for name in names) == expected
    assert (actual["TILE_M"], actual["STAGES"]) == ("128", "3")
    source = cutlass_build.SOURCE.read_text()
    assert all(name in source for name in actual)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("8x8x8:f32:nt", "16-bit inputs"),
        ("8x8x8:f16:nt:bias:act=relu", "without bias, relu"),
        ("8x8x7:f16:nt", "aligned to one element"),
    ],
)
def test_what_cutlass_does_not_compute_is_absent(text: str, reason: str) -> None:
    assert reason in unsupported(Gemm.parse(text))
    with pytest.raises(BaselineUnavailable, match=reason):
        CutlassBaseline(Gemm.parse(text), 0, 0)


@pytest.mark.skipif(importlib.util.find_spec("cutlass_library") is not None, reason="CUTLASS is installed")
def test_without_the_package_cutlass_is_absent() -> None:
    with pytest.raises(BaselineUnavailable, match="pip install nvidia-cutlass"):
        CutlassBaseline(Gemm.parse("8x8x8:f16:nt"), 0, 0)


def test_without_nvcc_cutlass_is_absent(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_PATH", "/nowhere")
    assert headers() == package
    with pytest.raises(BaselineUnavailable, match="nvcc, which was not found"):
        CutlassBaseline(Gemm.parse("8x8x8:f16:nt"), 0, 0)


def test_a_template_is_compiled_once(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = fake_nvcc(tmp_path / "bin", monkeypatch, "echo library > $out\n")
    every = [macros(Gemm.parse("512x256x128:f16:nt"), template) for template in TEMPLATES[:3]]
    first = libraries("sm_90a", every, tmp_path / "kept")
    assert len({str(path) for path in first}) == 3
    assert all(isinstance(path, Path) and path.read_text() == "library\n" for path in first)
    commands = log.read_text().splitlines()
    assert len(commands) == 3
    assert all(f"-I{package}" in line and "-arch=sm_90a" in line for line in commands)
    assert libraries("sm_90a", every, tmp_path / "kept") == first
    assert len(log.read_text().splitlines()) == 3
    # Other headers, another compile.
    (package / "cutlass" / "version.h").write_text("#define CUTLASS_MAJOR 5\n")
    libraries("sm_90a", every[:1], tmp_path / "kept")
    assert len(log.read_text().splitlines()) == 4


def test_a_template_that_nvcc_refuses_is_refused_with_its_words(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del package
    fake_nvcc(tmp_path / "bin", monkeypatch, 'echo "x.h(1): error: no such tile" >&2\nexit 1\n')
    actual = libraries("sm_90a", [macros(Gemm.parse("512x256x128:f16:nt"), TEMPLATES[0])], tmp_path / "kept")
    assert isinstance(actual[0], DoesNotCompile)
    baseline: Any = SimpleNamespace()
    with pytest.raises(Refused, match="error: no such tile"):
        CutlassBaseline._call(baseline, actual[0], [{}], 0)
    assert not list((tmp_path / "kept").iterdir())


def test_a_call_passes_addresses_strides_and_leading_dimensions(monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = Gemm.parse("512x256x128:f16:tt:batch=3:beta:lda=520:ldc=264:stride_b=65536")
    taken: list[Any] = []

    def refuse(*given: Any) -> int:
        taken.append(given)
        return 7

    library = SimpleNamespace(cutlass_gemm=refuse, cutlass_words={7: b"Error Internal"}.__getitem__)
    monkeypatch.setattr(cutlass_baseline, "loaded", lambda _: library)
    baseline: Any = CutlassBaseline.__new__(CutlassBaseline)
    baseline._gemm, baseline._stream = gemm, 5
    names = ("a", "b", "c", "d")
    baseline._layouts = {name: layout_of(gemm, name, gemm.m_max) for name in names}
    views: Any = {name: SimpleNamespace(address=1000 * i) for i, name in enumerate(names, 1)}
    run = baseline._call(Path("x.so"), [views], 0)
    with pytest.raises(Refused, match=r"CUTLASS answers Error Internal \(7\)"):
        run()
    (given,) = taken
    assert given[:4] == (512, 256, 128, 3)
    assert given[4:8] == (1000, 2000, 3000, 4000)
    assert given[8:12] == (128 * 520, 65536, 512 * 264, 512 * 256)
    assert given[12:16] == (520, 128, 264, 256)
    assert given[16:] == (1.0, 5)
