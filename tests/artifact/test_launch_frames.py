"""What the launcher keeps between calls on a GPU (sizes by m, encoded tensor maps) reaches no call that differs."""

from __future__ import annotations

from tests.artifact.test_launcher_cuda import code, launch_of, launches, named
from tests.helpers.fake_cuda import FakeCuda
from tirgemm.expr import M, ceildiv
from tirgemm.launch import KernelLaunch, Pointer, Scalar, Size, TensorMap, Workspace

OVER_A = TensorMap("a", "f16", (40, M), (80,), (32, 64), (1, 1), 0, 3, 2, 0)
OVER_B = TensorMap("b", "f16", (40, 24), (80,), (32, 24), (1, 1), 0, 3, 2, 0)
SIZED = launch_of(
    KernelLaunch("main__pfil", (Pointer("d"), Scalar("alpha"), Size(M), Size(M * 2, "i64")), (ceildiv(M, 8), 1, 1))
)


def test_sizes_pointers_and_scalars_are_those_of_each_call(cuda: FakeCuda) -> None:
    then = """
for m, alpha, stream in ((57, 1.5, 7), (57, 2.5, 8), (8, 2.5, 8), (57, 0.0, 7)):
    with ffi.use_raw_stream(ffi.device('cuda', 0), stream):
        call(m, 0, alpha)
a, b, _ = operands(57)
function(a, b, CudaTensor((57, 24), address=0x7000000), 1.0)
"""
    _, events = cuda.run(code(SIZED, then))
    assert [(event["grid"][0], event["params"], event["stream"]) for event in launches(events)] == [
        (8, [0x3000000, 1.5, 57, 114], 7),
        (8, [0x3000000, 2.5, 57, 114], 8),
        (1, [0x3000000, 2.5, 8, 16], 8),
        (8, [0x3000000, 0, 57, 114], 7),
        (8, [0x7000000, 1, 57, 114], 0),
    ]


def test_a_tensor_map_is_encoded_once_for_an_address_and_the_m_that_it_depends_on(cuda: FakeCuda) -> None:
    kernel = KernelLaunch("main__mm", (OVER_A, OVER_B), (1, 1, 1), (128, 1, 1))
    then = """
call(57); call(57); call(99); call(57)
a, _, d = operands(57)
function(a, CudaTensor((24, 40), address=0x5000000), d, 0.5)
call(57)
call(57, 1); call(57, 1)
"""
    _, events = cuda.run(code(launch_of(kernel), then))
    encoded = {e["map"]: (e["address"], e["dims"][1]) for e in named(events, "cuTensorMapEncodeTiled")}
    assert list(encoded.values()) == [
        (0x1000000, 57),
        (0x2000000, 24),
        (0x1000000, 99),
        (0x5000000, 24),
        (0x1000000, 57),
        (0x2000000, 24),
    ]
    shown = [[encoded[int(text.split()[1])] for text in event["params"]] for event in launches(events)]
    a, b = (0x1000000, 57), (0x2000000, 24)
    assert shown == [[a, b], [a, b], [(0x1000000, 99), b], [a, b], [a, (0x5000000, 24)], [a, b], [a, b], [a, b]]


def test_of_a_thousand_addresses_each_call_has_its_own_map(cuda: FakeCuda) -> None:
    kernel = KernelLaunch("main__mm", (OVER_A, OVER_B), (1, 1, 1), (128, 1, 1))
    then = """
a, _, d = operands(57)
for turn in range(3):
    for index in range(1000):
        function(a, CudaTensor((24, 40), address=0x10000000 + 512 * index), d, 0.5)
"""
    _, events = cuda.run(code(launch_of(kernel), then))
    encoded = {e["map"]: e["address"] for e in named(events, "cuTensorMapEncodeTiled")}
    shown = [encoded[int(event["params"][1].split()[1])] for event in launches(events)]
    assert shown == [0x10000000 + 512 * index for index in range(1000)] * 3


def test_a_map_that_could_not_be_encoded_is_encoded_at_the_next_call(cuda: FakeCuda) -> None:
    kernel = KernelLaunch("main__m", (OVER_A,), (1, 1, 1), (128, 1, 1))
    then = "result = error()\nimport os\nos.environ['FAKE_CUDA_FAIL'] = ''\ncall(); call()"
    result, events = cuda.run(code(launch_of(kernel), then), FAKE_CUDA_FAIL="cuTensorMapEncodeTiled:1")
    assert result[0] == "LaunchFailed"
    assert "cuTensorMapEncodeTiled failed" in result[1]
    assert len([e for e in named(events, "cuTensorMapEncodeTiled") if "failed" not in e]) == 1
    assert len(launches(events)) == 2


def test_an_m_that_the_kernel_has_no_grid_for_leaves_nothing_behind(cuda: FakeCuda) -> None:
    kernel = KernelLaunch("main__i", (Size(M),), (M - 8, 1, 1), (128, 1, 1))
    then = "call(57)\nresult = [error(call, 8), error(call, 8)]\ncall(57); call(9)"
    result, events = cuda.run(code(launch_of(kernel), then))
    assert [kind for kind, _ in result] == ["CorruptArtifact"] * 2
    assert [(event["grid"][0], event["params"]) for event in launches(events)] == [(49, [57]), (49, [57]), (1, [9])]


def test_threads_that_call_at_once_launch_each_their_own(cuda: FakeCuda) -> None:
    kernel = KernelLaunch("main__pim", (Pointer("d"), Size(M), OVER_A), (M, 1, 1), (128, 1, 1))
    launch = launch_of(kernel, workspaces=(Workspace("w", M * 4),))
    then = """
import threading
def run(seed):
    for turn in range(200):
        m = 1 + (7 * turn + seed) % 50
        a = CudaTensor((m, 40), address=0x1000000 * (seed + 1) + 4096 * m, device=seed % 2)
        b = CudaTensor((24, 40), address=0x90000000, device=seed % 2)
        with ffi.use_raw_stream(ffi.device('cuda', seed % 2), 1000 * seed + m):
            function(a, b, CudaTensor((m, 24), address=0x10000000 * (seed + 1) + 4096 * m, device=seed % 2), 1.0)
threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
for t in threads: t.start()
for t in threads: t.join()
"""
    _, events = cuda.run(code(launch, then))
    encoded = {e["map"]: (e["address"], e["dims"][1]) for e in named(events, "cuTensorMapEncodeTiled")}
    seen = launches(events)
    assert len(seen) == 800
    for event in seen:
        d, m, over_a = event["params"]
        seed = event["stream"] // 1000
        assert (event["grid"][0], event["stream"] % 1000, event["device"]) == (m, m, seed % 2)
        assert d == 0x10000000 * (seed + 1) + 4096 * m
        assert encoded[int(over_a.split()[1])] == (0x1000000 * (seed + 1) + 4096 * m, m)


def test_after_close_nothing_of_the_old_module_is_launched(cuda: FakeCuda) -> None:
    kernel = KernelLaunch("main__m", (OVER_A,), (1, 1, 1), (128, 1, 1))
    _, events = cuda.run(code(launch_of(kernel), "call(); call(); close(); call(); call()"))
    order = [e["call"] for e in named(events, "cuTensorMapEncodeTiled", "cuLibraryUnload")]
    assert order == ["cuTensorMapEncodeTiled", "cuLibraryUnload", "cuTensorMapEncodeTiled"]
