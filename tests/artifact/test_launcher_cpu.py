"""The launcher on the CPU: values, threads, workspaces, errors of kernels."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.artifact_samples import TRUST, kernel, operands, packed, raw_kernel, shared_object
from tests.waiting import PATIENCE_S, until
from tirgemm import detect_cpu, expr
from tirgemm.artifact import build, export, load, native
from tirgemm.errors import CorruptArtifact, InvalidRequest, LaunchFailed
from tirgemm.expr import M
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import KernelLaunch, Launch, Pointer, Size, Workspace, tensor_args

# d has one row a block, of N columns.
GEMM = Gemm(37, 5, 3, dtype="f32", align=4)


def call(function: Callable[..., Any], gemm: Gemm = GEMM, m: int | None = None) -> np.ndarray:
    arrays, _ = operands(gemm, m)
    out = np.full((m or gemm.m_max, gemm.n), np.nan, np.float32)
    function(arrays["a"], arrays["b"], out)
    return out


def launch_of(*kernels: KernelLaunch, workspaces: tuple[Workspace, ...] = (), gemm: Gemm = GEMM) -> Launch:
    return Launch(tensor_args(gemm), (), kernels, workspaces)


@pytest.mark.parametrize(
    "text",
    [
        "37x29x13:f32:nn:align=4",
        "1x1x1:f32:nt:align=4",
        "37x29x13:f16:tt:align=2",
        "5x29x13:bf16:tn:align=2",
        "7x9x13:f32:nt:batch=3:align=4",
        "37x29x13:f32:nt:lda=17:ldb=14:ldd=31:align=4",
        "9x29x13:f32:nn:alpha:beta:bias:align=4",
        "9x29x13:f16:nt:beta:ldc=40:align=2",
    ],
)
def test_a_kernel_computes_what_its_gemm_says(text: str) -> None:
    gemm = Gemm.parse(text)
    arrays, expected = operands(gemm)
    scalars = {name: {"alpha": 0.5, "beta": -2.0}[name] for name in gemm.scalars}
    out = kernel(gemm)(**arrays, **scalars)
    expected = expected * scalars.get("alpha", 1.0)
    if gemm.beta:
        expected = expected - 2.0 * arrays["c"].astype(np.float64)
    if gemm.bias:
        expected = expected + arrays["bias"].astype(np.float64)
    assert out.dtype == arrays["a"].dtype
    np.testing.assert_array_equal(out.astype(np.float64), expected)


@pytest.mark.parametrize("layout", ["nn", "tn"])
def test_one_kernel_serves_every_m_of_its_range(layout: str) -> None:
    gemm = Gemm(Range(1, 70), 11, 5, dtype="f32", layout=layout, align=4)
    served = kernel(gemm)
    for m in (1, 2, 33, 70):
        arrays, expected = operands(gemm, m)
        np.testing.assert_array_equal(served(**arrays), expected)


def test_every_block_runs_exactly_once_whatever_the_threads() -> None:
    source = r"""
    KERNEL(count) { float* d = args[0].v.p; int64_t i = args[1].v.i;
      for (int j = 0; j < 5; ++j) __atomic_fetch_add(&((int32_t*)d)[i * 5 + j], 1, __ATOMIC_RELAXED); return 0; }
    """
    gemm = Gemm(1001, 5, 3, dtype="f32", align=4)
    for threads in (0, 1, 2, 3, 64):
        launch = launch_of(
            KernelLaunch("count", (Pointer("d"),), (1001, 1, 1), attributes=(("threads", threads),)), gemm=gemm
        )
        function = raw_kernel(gemm, launch, shared_object(source))
        arrays, _ = operands(gemm)
        out = np.zeros((1001, 5), np.int32).view(np.float32)
        for _ in range(20):
            function(arrays["a"], arrays["b"], out)
        assert (out.view(np.int32) == 20).all()


# How many blocks have run at once.
MOST_AT_ONCE = r"""
static int inside, most, waits;
KERNEL(enter) { int now = __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
  int seen = __atomic_load_n(&most, __ATOMIC_SEQ_CST);
  while (now > seen && !__atomic_compare_exchange_n(&most, &seen, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
  // A block waits for those that may run beside it, however late a busy machine starts their threads.
  while (__atomic_load_n(&most, __ATOMIC_SEQ_CST) < WANTED) {
    if (__atomic_add_fetch(&waits, 1, __ATOMIC_SEQ_CST) > LOOKS) break;
    usleep(2000);
  }
  usleep(2000); __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST); return 0; }
KERNEL(report) { ((float*)args[0].v.p)[0] = most; return 0; }
"""


def most_at_once(cap: int, wanted: int, looks: int = 10000) -> tuple[Launch, bytes]:
    """A launch that writes how many of its eight blocks have run at once, and its binary."""
    enter = KernelLaunch("enter", (Pointer("d"),), (8, 1, 1), attributes=(("threads", cap),) if cap else ())
    binary = shared_object(MOST_AT_ONCE, f"-DWANTED={wanted}", f"-DLOOKS={looks}")
    return launch_of(enter, KernelLaunch("report", (Pointer("d"),))), binary


def test_the_thread_cap_of_a_kernel_is_kept() -> None:
    for cap, expected in ((1, 1), (0, min(8, native.host_threads()))):
        launch, binary = most_at_once(cap, expected)
        assert call(raw_kernel(GEMM, launch, binary))[0, 0] == expected


@pytest.mark.parametrize(
    ("environment", "cap", "given", "expected"),
    [
        ("1", 0, None, 1),
        (" 1, 4", 0, None, 1),
        ("64", 1, None, 1),
        ("none", 0, 1, 1),
        ("0", 0, None, 8),
        ("", 0, None, 8),
        ("1", 0, 0, 8),
        ("9" * 30, 0, None, 8),
    ],
)
def test_a_loaded_kernel_takes_no_more_threads_than_it_is_given(
    environment: str, cap: int, given: int | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", environment)
    expected = min(expected, native.host_threads())
    launch, binary = most_at_once(cap, expected if expected > 1 else 2, 10000 if expected > 1 else 100)
    loaded = load(packed(GEMM, launch=launch, binary=binary), trust=TRUST, threads=given)
    assert call(loaded.raw)[0, 0] == expected


def test_an_export_takes_no_more_threads_than_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tvm_ffi

    monkeypatch.setenv("OMP_NUM_THREADS", "1, 4")
    launch, binary = most_at_once(0, 2, 100)
    path = export(packed(GEMM, launch=launch, binary=binary), tmp_path / "gemm.so", TRUST)
    assert call(tvm_ffi.load_module(str(path))["main"])[0, 0] == 1


def test_kernels_run_in_order_over_zeroed_and_aligned_workspaces() -> None:
    source = r"""
    KERNEL(first) { float *w = args[0].v.p, *z = args[1].v.p; int64_t i = args[2].v.i;
      if ((uintptr_t)w % 64 || (uintptr_t)z % 64) {
        TVMFFIErrorSetRaisedFromCStr("ValueError", "not aligned"); return -1; }
      w[i] = i; z[i] += 1; return 0; }
    KERNEL(second) { float *w = args[0].v.p, *z = args[1].v.p, *d = args[2].v.p; int64_t i = args[3].v.i;
      for (int j = 0; j < 5; ++j) d[i * 5 + j] = w[36 - i] + 100 * z[i]; return 0; }
    """
    pointers = (Pointer("w"), Pointer("z"))
    launch = launch_of(
        KernelLaunch("first", pointers, (37, 1, 1)),
        KernelLaunch("second", (*pointers, Pointer("d")), (37, 1, 1)),
        workspaces=(Workspace("w", 37 * 4), Workspace("z", 37 * 4, "zero")),
    )
    function = raw_kernel(GEMM, launch, shared_object(source))
    for _ in range(3):
        np.testing.assert_array_equal(call(function)[:, 4], 36 - np.arange(37) + 100)


def test_a_workspace_that_grows_with_m_is_large_enough() -> None:
    source = r"""
    KERNEL(fill) { int64_t bytes = args[1].v.i;
      memset(args[0].v.p, 7, bytes); ((float*)args[2].v.p)[args[3].v.i * 5] = bytes; return 0; }
    """
    gemm = Gemm(Range(1, 5000), 5, 3, dtype="f32", align=4)
    nbytes = M * 4096
    fill = KernelLaunch("fill", (Pointer("w"), Size(nbytes, "i64"), Pointer("d")), (1, 1, 1))
    launch = launch_of(fill, workspaces=(Workspace("w", nbytes),), gemm=gemm)
    function = raw_kernel(gemm, launch, shared_object(source))
    for m in (1, 5000, 3):
        assert call(function, gemm, m)[0, 0] == m * 4096


def test_a_failing_kernel_raises_its_words_and_the_next_call_works() -> None:
    source = r"""
    static int calls;
    KERNEL(fails) { int64_t i = args[1].v.i;
      if (i == 20 && calls++ == 0) { TVMFFIErrorSetRaisedFromCStr("ValueError", "block twenty is tired"); return -1; }
      ((float*)args[0].v.p)[i * 5] = i; return 0; }
    """
    launch = launch_of(KernelLaunch("fails", (Pointer("d"),), (37, 1, 1)))
    function = raw_kernel(GEMM, launch, shared_object(source))
    with pytest.raises(LaunchFailed, match="fails failed: block twenty is tired"):
        call(function)
    assert call(function)[36, 0] == 36


@pytest.mark.parametrize("threads", [-1, 10**12, "x", 1.5, True])
def test_threads_that_are_no_number_of_them_are_refused(threads: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"threads is {threads!r}; it must be None or an integer from 0"):
        load(packed(GEMM), trust=TRUST, threads=threads)


def test_callers_on_many_threads_do_not_mix_their_work() -> None:
    gemm = Gemm(Range(1, 64), 33, 17, dtype="f32", align=4)
    actual, failures = kernel(gemm), []

    def work(seed: int) -> None:
        for turn in range(30):
            arrays, expected = operands(gemm, 1 + (seed * 7 + turn) % 64, seed)
            if not np.array_equal(actual(**arrays), expected):
                failures.append((seed, turn))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def _call_in_child(queue: multiprocessing.Queue[bool]) -> None:
    arrays, expected = operands(GEMM)
    queue.put(bool(np.array_equal(kernel(GEMM)(**arrays), expected)))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_gets_workers_of_its_own() -> None:
    arrays, expected = operands(GEMM)
    np.testing.assert_array_equal(kernel(GEMM)(**arrays), expected)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_call_in_child, args=(queue,))
    child.start()
    assert queue.get(timeout=PATIENCE_S)
    child.join(PATIENCE_S)
    assert child.exitcode == 0


def _call_from_a_pinned_thread() -> None:
    cpus, before = os.sched_getaffinity(0), {*Path("/proc/self/task").iterdir()}

    def pinned() -> None:
        os.sched_setaffinity(0, {min(cpus)})
        call(kernel(GEMM).raw)

    thread = threading.Thread(target=pinned)
    thread.start()
    thread.join()

    def workers_are_free() -> bool:
        started = {int(task.name) for task in {*Path("/proc/self/task").iterdir()} - before} - {thread.native_id}
        return [os.sched_getaffinity(worker) for worker in started] == [cpus] * (native.host_threads() - 1)

    until(workers_are_free)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_have_the_affinity_of_the_process_whichever_thread_calls_first() -> None:
    child = multiprocessing.get_context("fork").Process(target=_call_from_a_pinned_thread)
    child.start()
    child.join(2 * PATIENCE_S)
    assert child.exitcode == 0


def test_the_launcher_uses_no_more_threads_than_the_affinity_allows() -> None:
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))});"
        "from tirgemm.artifact import native; print(native.host_threads())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_the_launcher_and_python_read_the_same_quotas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = """
#include <cstdio>
#include "thread_pool.h"
int main(int, char** argv) { std::printf("%d", std::min(64, tirgemm::QuotaThreads(argv[1], argv[1]))); }
"""
    (tmp_path / "quota.cc").write_text(f'#include "{build.SOURCES}/thread_pool.cc"\n{main}')
    command = ["g++", "-std=c++17", "-pthread", f"-I{build.SOURCES}", str(tmp_path / "quota.cc"), "-o"]
    subprocess.run([*command, str(tmp_path / "quota")], check=True)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)))

    def period(group: str) -> dict[str, str]:
        return {f"{group}/cpu.cfs_period_us": "100000"}

    cases: list[tuple[dict[str, str], int]] = [
        ({}, 64),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"self/cgroup": "0::/", "cpu.max": "50000 100000"}, 1),
        ({"self/cgroup": "1:cpu:/x\n0::/a.slice/job.scope", "a.slice/job.scope/cpu.max": "400000 100000"}, 4),
        ({"self/cgroup": "0::/a.slice/job", "a.slice/cpu.max": "250000 100000", "cpu.max": "400000 100000"}, 3),
        ({"self/cgroup": "0::/job", "other/cpu.max": "100000 100000"}, 64),
        (
            {"self/cgroup": "2:cpu,cpuacct:/a/job\n0::/", "cpu/a/job/cpu.cfs_quota_us": "300000"} | period("cpu/a/job"),
            3,
        ),
        ({"self/cgroup": "2:cpuacct,cpu:/a/job", "cpu/a/cpu.cfs_quota_us": "100000"} | period("cpu/a"), 1),
        ({"self/cgroup": "odd\n3:cpuset:/a", "cpu/a/cpu.cfs_quota_us": "100000"} | period("cpu/a"), 64),
    ]
    for number, (files, threads) in enumerate(cases):
        root = tmp_path / str(number)
        root.mkdir()
        for name, text in files.items():
            (root / name).parent.mkdir(exist_ok=True, parents=True)
            (root / name).write_text(text + "\n")
        shown = subprocess.run([str(tmp_path / "quota"), str(root)], capture_output=True, text=True, check=True).stdout
        assert (int(shown), detect_cpu.usable_threads(root, root)) == (threads, threads), files


def test_two_kernels_with_one_symbol_do_not_answer_for_each_other() -> None:
    one, two = (
        raw_kernel(
            GEMM,
            launch_of(KernelLaunch("same", (Pointer("d"),))),
            shared_object(f"KERNEL(same) {{ ((float*)args[0].v.p)[0] = {number}; return 0; }}"),
        )
        for number in (1, 2)
    )
    assert (call(one)[0, 0], call(two)[0, 0], call(one)[0, 0]) == (1, 2, 1)


def test_kernels_keep_no_file_open_so_that_a_process_may_close_all_of_its_own() -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    call(kernel(GEMM).raw)
    # What other tests have left may be closed at any time, now at the latest.
    gc.collect()
    before = open_files()
    kept = [kernel(GEMM).raw for _ in range(5)]
    for raw in kept:
        call(raw)
    assert open_files() <= before


@pytest.mark.parametrize(
    ("binary", "message"),
    [
        (b"\x7fELF" + bytes(100), "does not load"),
        (b"", "does not load"),
        (shared_object("int unrelated;"), "has no function rows"),
    ],
)
def test_a_broken_shared_object_is_refused_at_load(binary: bytes, message: str) -> None:
    with pytest.raises(CorruptArtifact, match=message):
        raw_kernel(GEMM, launch_of(KernelLaunch("rows", (Pointer("d"),))), binary)


def test_an_empty_grid_is_refused_at_the_call() -> None:
    gemm = Gemm(Range(1, 64), 5, 3, dtype="f32", align=4)
    launch = launch_of(KernelLaunch("rows", (Pointer("d"),), (expr.make("sub", M, 1), 1, 1)), gemm=gemm)
    function = raw_kernel(gemm, launch, shared_object("KERNEL(rows) { return 0; }"))
    with pytest.raises(CorruptArtifact, match="0 blocks"):
        call(function, gemm, 1)
