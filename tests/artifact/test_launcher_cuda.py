"""The launcher's GPU side against a driver that only records: what it is asked to do, in order, and what fails.

The results of real kernels are tests/gpu/test_launcher_gpu.py's.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.artifact_samples import fake_cubin
from tests.helpers.fake_cuda import FakeCuda
from tirgemm.expr import M, ceildiv, make, minimum
from tirgemm.gemm import Gemm, Range
from tirgemm.hardware import named_device
from tirgemm.launch import KernelLaunch, Launch, Pointer, Scalar, Size, TensorMap, Workspace, scalar_args, tensor_args

GEMM = Gemm(Range(1, 500), 24, 40, layout="nt", alpha=True)
PARAMS = (Pointer("a"), Pointer("b"), Pointer("d"))


def launch_of(*kernels: KernelLaunch, workspaces: tuple[Workspace, ...] = (), gemm: Gemm = GEMM) -> Launch:
    return Launch(tensor_args(gemm), scalar_args(gemm), kernels, workspaces)


def code(launch: Launch, then: str, gemm: Gemm = GEMM, arch: str = "sm_90a") -> str:
    """Text that loads a launch as ``function`` (and ``close``), makes operands for m, and goes on with ``then``."""
    kernel = {"gemm": gemm.to_json(), "device": named_device(arch).to_json(), "launch": launch.to_json()}
    return f"""
from tirgemm.artifact import native
from tirgemm.errors import TirgemmError
loaded = native.load([{fake_cubin()!r}], [{json.dumps(kernel)!r}])
function, close = loaded.call, loaded.close
ffi = native.tvm_ffi()

def operands(m=57, device=0):
    a = CudaTensor((m, 40), address=0x1000000, device=device)
    b = CudaTensor((24, 40), address=0x2000000, device=device)
    return a, b, CudaTensor((m, 24), address=0x3000000, device=device)

def call(m=57, device=0, alpha=0.5):
    function(*operands(m, device), alpha)

def error(work=call, *args):
    try:
        work(*args)
    except TirgemmError as error:
        return [type(error).__name__, str(error)]
    return None

{then}
"""


def named(events: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [event for event in events if event["call"] in names]


def launches(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event for event in named(events, "cuLaunchKernelEx") if "failed" not in event]


def test_kernels_are_launched_in_order_with_what_the_call_evaluates(cuda: FakeCuda) -> None:
    first = KernelLaunch(
        "first__pppfil",
        (*PARAMS, Scalar("alpha"), Size(M + 3), Size(ceildiv(M, 16) * 2**33, "i64")),
        (ceildiv(M, 64), minimum(M // 10, 3), make("max", M % 7, 2)),
        (128, 2, 1),
        shared_bytes=1024,
    )
    second = KernelLaunch("second__p", (Pointer("d"),), (24, 1, 1), (32, 1, 1))
    then = "with ffi.use_raw_stream(ffi.device('cuda', 0), 0x5151):\n    call(57, 0, -0.25)"
    _, events = cuda.run(code(launch_of(first, second), then))
    one, two = launches(events)
    assert one == {
        "call": "cuLaunchKernelEx",
        "name": "first__pppfil",
        "grid": [1, 3, 2],
        "block": [128, 2, 1],
        "shared": 1024,
        "stream": 0x5151,
        "device": 0,
        "params": [0x1000000, 0x2000000, 0x3000000, -0.25, 60, 4 * 2**33],
        "attributes": [],
    }
    assert (two["name"], two["grid"], two["params"], two["stream"]) == ("second__p", [24, 1, 1], [0x3000000], 0x5151)


def test_cluster_and_dependent_launch_are_attributes_and_large_ones_are_asked_for(cuda: FakeCuda) -> None:
    kernel = KernelLaunch(
        "main__p",
        (Pointer("d"),),
        (16, 1, 1),
        (128, 1, 1),
        (16, 1, 1),
        200_000,
        (("programmatic_dependent_launch", 1),),
    )
    small = KernelLaunch("small__p", (Pointer("d"),), (4, 1, 1), (128, 1, 1), (2, 1, 1), 48 * 1024)
    _, events = cuda.run(code(launch_of(kernel, small), "call(); call()"))
    one, two, *again = launches(events)
    assert one["attributes"] == [["cluster", 16, 1, 1], ["dependent", 1]]
    assert two["attributes"] == [["cluster", 2, 1, 1]]
    assert [event["attributes"] for event in again] == [one["attributes"], two["attributes"]]
    assert [(e["attribute"], e["value"]) for e in named(events, "cuKernelSetAttribute")] == [
        ("shared", 200_000),
        ("cluster", 1),
    ]


def test_tensor_maps_are_encoded_at_the_call_over_tensors_and_workspaces(cuda: FakeCuda) -> None:
    over_a = TensorMap("a", "f16", (40, M), (80,), (32, minimum(64, M)), (1, 1), 0, 3, 2, 0)
    over_w = TensorMap("w", "f32", (24, M, 2), (96, M * 96), (24, 64, 1), (1, 1, 1), 0, 0, 0, 1)
    kernel = KernelLaunch("main__mpm", (over_a, Pointer("d"), over_w), (1, 1, 1), (128, 1, 1))
    launch = launch_of(kernel, workspaces=(Workspace("w", M * 192),))
    _, events = cuda.run(code(launch, "call(57); call(99)"))
    allocated = named(events, "cuMemAllocAsync")[0]["address"]
    first, second, third, _ = named(events, "cuTensorMapEncodeTiled")
    assert first | {"map": 0} == {
        "call": "cuTensorMapEncodeTiled",
        "map": 0,
        "type": 6,
        "address": 0x1000000,
        "dims": [40, 57],
        "strides": [80],
        "box": [32, 57],
        "element_strides": [1, 1],
        "modes": [0, 3, 2, 0],
    }
    assert (second["type"], second["address"], second["dims"], second["strides"]) == (
        7,
        allocated,
        [24, 57, 2],
        [96, 5472],
    )
    assert (third["dims"], third["box"]) == ([40, 99], [32, 64])
    assert launches(events)[0]["params"] == [f"map {first['map']}", 0x3000000, f"map {second['map']}"]


WORKSPACES = launch_of(
    KernelLaunch("main__ppp", (Pointer("w"), Pointer("z"), Pointer("d"))),
    workspaces=(Workspace("w", M * 100), Workspace("z", 64, "zero")),
)


def test_workspaces_come_from_the_stream_and_go_back_to_it(cuda: FakeCuda) -> None:
    then = "with ffi.use_raw_stream(ffi.device('cuda', 1), 0x77):\n    call(57, 1)"
    _, events = cuda.run(code(WORKSPACES, then))
    (allocated,) = named(events, "cuMemAllocAsync")
    base = allocated["address"]
    assert (allocated["size"], allocated["stream"]) == (5888 + 256, 0x77)
    order = ["cuMemAllocAsync", "cuMemsetD8Async", "cuLaunchKernelEx", "cuMemFreeAsync"]
    assert [event["call"] for event in named(events, *order)] == order
    (zeroed,) = named(events, "cuMemsetD8Async")
    assert (zeroed["address"], zeroed["value"], zeroed["size"], zeroed["stream"]) == (base + 5888, 0, 64, 0x77)
    assert launches(events)[0]["params"] == [base, base + 5888, 0x3000000]
    assert named(events, "cuMemFreeAsync") == [{"call": "cuMemFreeAsync", "address": base, "stream": 0x77}]


def test_workspaces_come_from_the_frameworks_allocator_where_it_has_one(cuda: FakeCuda) -> None:
    _, events = cuda.run(code(WORKSPACES, "with allocator(driver):\n    call(57, 1)"))
    assert not named(events, "cuMemAllocAsync", "cuMemFreeAsync")
    order = ["framework_alloc", "cuMemsetD8Async", "cuLaunchKernelEx", "framework_free"]
    assert [event["call"] for event in named(events, *order)] == order
    (allocated,) = named(events, "framework_alloc")
    assert (allocated["size"], allocated["device"], allocated["type"]) == (6144, [2, 1], [1, 8])
    assert launches(events)[0]["params"] == [0x600000000000, 0x600000000000 + 5888, 0x3000000]


@pytest.mark.parametrize("planted", ["cuLaunchKernelEx:719", "cuMemsetD8Async:1"])
def test_a_workspace_is_given_back_when_the_launch_fails(cuda: FakeCuda, planted: str) -> None:
    name, number = planted.split(":")
    result, events = cuda.run(code(WORKSPACES, "result = error()"), FAKE_CUDA_FAIL=planted)
    assert result[0] == "LaunchFailed"
    assert f"CUDA_ERROR_{number} ({number})" in result[1]
    assert ("main__ppp" if name == "cuLaunchKernelEx" else name) in result[1]
    assert len(named(events, "cuMemFreeAsync")) == 1


def test_no_memory_for_a_workspace_is_said_with_its_size(cuda: FakeCuda) -> None:
    result, events = cuda.run(code(WORKSPACES, "result = error()"), FAKE_CUDA_FAIL="cuMemAllocAsync:2")
    assert result == ["LaunchFailed", "no 6144 bytes of workspace on cuda:0: CUDA_ERROR_2 (2)"]
    assert not launches(events)
    then = "with allocator(driver):\n    result = error()"
    result, _ = cuda.run(code(WORKSPACES, then), FAKE_CUDA_OOM="1")
    assert result == ["LaunchFailed", "no 6144 bytes of workspace on cuda:0: the framework is out of memory"]


PLAIN = launch_of(KernelLaunch("main__ppp", PARAMS, (3, 1, 1), (64, 1, 1)))


def test_the_cubin_is_loaded_once_and_the_function_once_a_device(cuda: FakeCuda) -> None:
    then = """
import threading
call(57, 0)
threads = [threading.Thread(target=call, args=(57, i % 2)) for i in range(8)]
for t in threads: t.start()
for t in threads: t.join()
"""
    _, events = cuda.run(code(PLAIN, then))
    assert len(named(events, "cuLibraryLoadData")) == 1
    assert sorted(event["device"] for event in named(events, "cuKernelGetFunction")) == [0, 1]
    assert sorted(event["device"] for event in named(events, "cuDevicePrimaryCtxRetain")) == [0, 1]
    assert sorted(event["device"] for event in launches(events)) == [0] * 5 + [1] * 4


def test_a_thread_without_a_context_is_given_one_and_left_as_it_was(cuda: FakeCuda) -> None:
    kernel = KernelLaunch("main__m", (TensorMap("a", "f16", (40, M), (80,), (32, 64), (1, 1)),))
    # Sixteen contexts left behind would overflow the fake driver's stack.
    _, events = cuda.run(code(launch_of(kernel), "on_thread(lambda: [call(57, i % 2) for i in range(40)])"))
    assert len(launches(events)) == 40


def test_loading_while_a_graph_is_captured_is_allowed_and_ends(cuda: FakeCuda) -> None:
    _, events = cuda.run(code(PLAIN, "call(); call()"))
    interesting = named(events, "cuThreadExchangeStreamCaptureMode", "cuLibraryLoadData", "cuLaunchKernelEx")
    assert [event.get("mode", event["call"]) for event in interesting] == [
        2,
        "cuLibraryLoadData",
        0,
        *["cuLaunchKernelEx"] * 2,
    ]


def test_close_unloads_and_the_next_call_loads_again(cuda: FakeCuda) -> None:
    _, events = cuda.run(code(PLAIN, "call(); close(); close(); call(); del function, close"))
    interesting = named(events, "cuLibraryLoadData", "cuLibraryUnload", "cuLaunchKernelEx")
    cycle = ["cuLibraryLoadData", "cuLaunchKernelEx"]
    assert [event["call"] for event in interesting] == [*cycle, "cuLibraryUnload", *cycle]


@pytest.mark.parametrize(
    ("arch", "device", "runs"),
    [
        ("sm_90a", "90", True),
        ("sm_90a", "100", False),
        ("sm_90a", "80", False),
        ("sm_80", "80", True),
        ("sm_80", "86", True),
        ("sm_86", "80", False),
        ("sm_80", "90", False),
        ("sm_89", "90", False),
    ],
)
def test_machine_code_runs_on_its_architecture_only(cuda: FakeCuda, arch: str, device: str, runs: bool) -> None:
    result, events = cuda.run(code(PLAIN, "result = error()", arch=arch), FAKE_CUDA_ARCH=device)
    assert (result is None) == runs
    assert len(launches(events)) == runs
    if not runs:
        assert result == ["IncompatibleArtifact", f"this kernel was built for {arch}; cuda:0 is sm_{device}"]


@pytest.mark.parametrize(
    ("planted", "kind", "words"),
    [
        ("cuLibraryLoadData:200", "CorruptArtifact", "does not take the cubin"),
        ("cuLibraryLoadData:2", "LaunchFailed", "cuLibraryLoadData failed: CUDA_ERROR_2"),
        ("cuLibraryGetKernel:500", "CorruptArtifact", "no usable kernel main__ppp"),
        ("cuLaunchKernelEx:1", "LaunchFailed", "main__ppp could not be launched"),
    ],
)
def test_a_failure_is_named_and_calls_work_after_it(cuda: FakeCuda, planted: str, kind: str, words: str) -> None:
    then = "result = error()\nimport os\nos.environ['FAKE_CUDA_FAIL'] = ''\ncall()"
    result, events = cuda.run(code(PLAIN, then), FAKE_CUDA_FAIL=planted)
    assert result[0] == kind
    assert words in result[1]
    assert len(launches(events)) == 1


def test_too_much_shared_memory_is_named_with_the_device(cuda: FakeCuda) -> None:
    launch = launch_of(KernelLaunch("main__ppp", PARAMS, shared_bytes=300_000))
    result, events = cuda.run(code(launch, "result = error()"))
    assert result[0] == "IncompatibleArtifact"
    assert "main__ppp needs 300000 bytes of shared memory, which cuda:0 (sm_90) does not give" in result[1]
    assert not launches(events)


def test_a_device_that_is_not_here_is_named(cuda: FakeCuda) -> None:
    result, _ = cuda.run(code(PLAIN, "result = [error(call, 57, 5), error(call, 57, 64)]"))
    assert [kind for kind, _ in result] == ["DeviceUnavailable"] * 2
    assert "cuda:5 is not here" in result[0][1]
    assert "cuda:64" in result[1][1]


def test_tensors_of_two_devices_or_of_the_cpu_are_refused(cuda: FakeCuda) -> None:
    then = """
a, b, d = operands()
def with_b(b): return lambda: function(a, b, d, 1.0)
result = [
    error(with_b(CudaTensor((24, 40), device=1))),
    error(with_b(CudaTensor((24, 40), device_type=1))),
    error(with_b(CudaTensor((24, 40), address=0x2000008))),
    error(with_b(CudaTensor((24, 40), address=0))),
    error(with_b(CudaTensor((24, 40), dtype="bf16"))),
]
"""
    result, events = cuda.run(code(PLAIN, then))
    assert [kind for kind, _ in result] == ["CallError"] * 4 + ["CallTypeError"]
    words = ("b is on cuda:1, but a is on cuda:0", "b is on the CPU", "aligned to 16 bytes", "no memory", "bfloat16")
    assert all(word in text for word, (_, text) in zip(words, result, strict=True))
    assert not launches(events)


def test_cupy_arrays_are_queued_on_cupys_stream(cuda: FakeCuda) -> None:
    from tests.helpers.artifact_samples import TRUST, packed

    launch = launch_of(KernelLaunch("main__ppp", PARAMS, (3, 1, 1), (64, 1, 1)))
    artifact = packed(GEMM, device=named_device("sm_90a"), launch=launch, binary=fake_cubin(), binary_format="cubin")
    then = f"""
import sys, types
from tirgemm.artifact import Trust, load
class ndarray(CudaTensor):
    __module__ = "cupy"
    dtype = types.SimpleNamespace(name="float16")
    def __dlpack__(self, *, stream):
        assert stream == -1
        return super().__dlpack__()
streams = lambda index: types.SimpleNamespace(ptr=0x600 + index)
sys.modules["cupy"] = types.SimpleNamespace(cuda=types.SimpleNamespace(get_current_stream=streams))
kernel = load({artifact!r}, trust=Trust.of({next(iter(TRUST.keys))!r}))
places = {{4096: (57, 40), 65536: (24, 40), 1 << 20: (57, 24)}}
a, b, d = (ndarray(shape, address=where, device=1) for where, shape in places.items())
assert kernel(a, b, alpha=2, out=d) is d
del sys.modules["cupy"]
"""
    _, events = cuda.run(then)
    assert [(event["stream"], event["device"]) for event in launches(events)] == [(0x601, 1)]


def test_load_refuses_a_cubin_that_no_gpu_here_runs(cuda: FakeCuda) -> None:
    from tests.helpers.artifact_samples import TRUST, packed

    artifact = packed(GEMM, device=named_device("sm_80"), launch=PLAIN, binary=fake_cubin(), binary_format="cubin")
    then = f"""
from tirgemm.artifact import Trust, load
from tirgemm.errors import IncompatibleArtifact
trust = Trust.of({next(iter(TRUST.keys))!r})
try:
    load({artifact!r}, trust=trust)
except IncompatibleArtifact as error:
    result = str(error)
load({artifact!r}, trust=trust, check_device=False)
"""
    result, _ = cuda.run(then)
    assert result == "the kernel was built for sm_80; the GPUs of this machine are sm_90, sm_90"
