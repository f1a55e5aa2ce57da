"""Calls that the launcher refuses on a real GPU, and that calls work after each refusal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tirgemm.artifact import Contents, Kernel, load, pack, read
from tirgemm.config import Config
from tirgemm.errors import (
    CallError,
    CallTypeError,
    CorruptArtifact,
    IncompatibleArtifact,
    LaunchFailed,
    TirgemmError,
)
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import (
    KernelLaunch,
    Launch,
    Pointer,
    tensor_args,
)
from tirgemm.timings import Timings

torch = pytest.importorskip("torch", reason="the launcher's GPU tests call with PyTorch tensors")

from tests.gpu.launcher_samples import (  # noqa: E402 (it imports torch)
    GPUS,
    PLAIN,
    SIGNER,
    TRUST,
    artifact,
    by_hand,
    check,
    loaded,
    zeros,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.torch,
    pytest.mark.skipif(not GPUS, reason="this machine has no NVIDIA GPU"),
]


def misaligned() -> None:
    """An operand one element past the 16 bytes that its gemm asks for."""
    memory = zeros(64 * 64 + 1)
    loaded(artifact("64x128x64:f16:tn"))(memory[1:].view(64, 64), zeros(64, 128))


def overlapping(kernel: Kernel) -> None:
    memory = zeros(257 * 129 + 257 * 65)
    kernel(memory[: 257 * 65].view(257, 65), zeros(129, 65), out=memory[257 * 65 - 1 :][: 257 * 129].view(257, 129))


def test_wrong_arguments_are_refused_and_calls_work_after_each() -> None:
    kernel = loaded(artifact())
    a, b, out = zeros(257, 65), zeros(129, 65), zeros(257, 129)
    wrong: dict[str, tuple[type[CallError], Callable[[], Any]]] = {
        "a has dtype bfloat16": (CallTypeError, lambda: kernel(a.bfloat16(), b)),
        "out has dtype float32": (CallTypeError, lambda: kernel(a, b, out=out.float())),
        "a has shape": (CallError, lambda: kernel(a[:-1], b, out=out)),
        "a has shape (1, 257, 65)": (CallError, lambda: kernel(a[None], b, out=out)),
        "a has strides (66, 1)": (CallError, lambda: kernel(zeros(257, 66)[:, :65], b)),
        "b has strides (1, 129)": (CallError, lambda: kernel(a, zeros(65, 129).T)),
        "must be aligned to 16 bytes": (CallError, misaligned),
        "a is on the CPU": (CallError, lambda: kernel(a.cpu(), b.cpu())),
        "b is on the CPU": (CallError, lambda: kernel(a, b.cpu(), out=out)),
        "a requires grad": (CallError, lambda: kernel(a.clone().requires_grad_(), b)),
        "out overlaps a": (CallError, lambda: overlapping(kernel)),
        "takes 3 arguments": (CallTypeError, lambda: kernel.raw(a, b)),
    }
    for words, (error, call) in wrong.items():
        with pytest.raises(error, match=re.escape(words)):
            call()
        check(kernel)


def test_a_broken_cubin_is_refused_and_other_kernels_work_after_it() -> None:
    kernel = loaded(artifact())
    check(kernel)
    whole = read(artifact(), TRUST).binary
    # As long as the real one: the driver is told no length and follows the header's offsets.
    broken = whole[:64] + bytes(len(whole) - 64)
    data = pack(
        Contents(
            gemm=kernel.gemm,
            config=kernel.config,
            device=GPUS[0],
            launch=kernel.manifest.launch,
            binary=broken,
            binary_format="cubin",
            sources={},
            flags=(),
            certificate=None,
            timings=Timings(),
        ),
        SIGNER,
    )
    for _ in range(2):
        with pytest.raises((CorruptArtifact, LaunchFailed)):
            loaded(data)(zeros(257, 65), zeros(129, 65))
    check(kernel)


def test_a_kernel_for_another_architecture_is_refused_at_load_and_at_the_call() -> None:
    from tirgemm.tuning.driver.nvrtc import compile_source

    other = "sm_80" if GPUS[0].arch != "sm_80" else "sm_90a"
    gemm, source = Gemm.parse(PLAIN), 'extern "C" __global__ void nothing() {}'
    data = pack(
        Contents(
            gemm=gemm,
            config=Config("hand", ()),
            device=named_device(other),
            launch=Launch(tensor_args(gemm), (), (KernelLaunch("nothing", ()),)),
            binary=compile_source(source, other).data,
            binary_format="cubin",
            sources={},
            flags=(),
            certificate=None,
            timings=Timings(),
        ),
        SIGNER,
    )
    if GPUS[0].arch[:4] == other[:4]:
        pytest.skip(f"{other} code runs on {GPUS[0].arch}")
    with pytest.raises(IncompatibleArtifact, match=f"built for {other}"):
        load(data, trust=TRUST)
    unchecked = load(data, trust=TRUST, check_device=False)
    with pytest.raises(IncompatibleArtifact, match=f"built for {other}; cuda:0 is sm_"):
        unchecked(zeros(257, 65), zeros(129, 65))
    check(loaded(artifact()))


@pytest.mark.parametrize(
    ("launch", "error", "words"),
    [
        (KernelLaunch("show", (Pointer("d"),), shared_bytes=400_000), IncompatibleArtifact, "400000 bytes of shared"),
        (KernelLaunch("show", (Pointer("d"),), block=(2048, 1, 1)), LaunchFailed, "show could not be launched"),
        (KernelLaunch("absent", (Pointer("d"),)), CorruptArtifact, "no usable kernel absent"),
    ],
)
def test_what_the_device_does_not_give_is_an_error_and_calls_work_after_it(
    launch: KernelLaunch, error: type[TirgemmError], words: str
) -> None:
    kernel = loaded(by_hand(PLAIN, 'extern "C" __global__ void show(unsigned short* d) { *d = 0; }', launch))
    for _ in range(2):
        with pytest.raises(error, match=words):
            kernel(zeros(257, 65), zeros(129, 65))
    check(loaded(artifact()))
    torch.cuda.synchronize()
