"""A workbench for kernels of dependent launches: builds and measurements are made up, artifacts are real."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from tests.helpers.artifact_samples import SIGNER, TRUST, fake_cubin
from tests.helpers.fake_workbench import FakeBench
from tirgemm.artifact import Contents, SetContents, Signer, pack, read
from tirgemm.config import Config
from tirgemm.detect import device as detect
from tirgemm.device import Device
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import DEPENDENT_LAUNCH, KernelLaunch, Launch, Pointer, scalar_args, tensor_args
from tirgemm.timings import Timings
from tirgemm.tuning.build.binary import Binary
from tirgemm.tuning.records.store import Store

HOPPER: Device = detect("sm_90a").with_(uuid="GPU-1")


def launch(gemm: Gemm, *, dependent: bool) -> Launch:
    attributes = (DEPENDENT_LAUNCH,) if dependent else ()
    kernel = KernelLaunch("made_up", (Pointer("a"),), attributes=attributes)
    return Launch(tensor_args(gemm), scalar_args(gemm), (kernel,))


def contents(gemm: Gemm, *, dependent: bool = False, **about: Any) -> Contents:
    """A kernel for a Hopper GPU."""
    values: dict[str, Any] = {
        "config": Config("sample", (("rows", gemm.m_max),)),
        "device": HOPPER.with_(uuid=""),
        "launch": launch(gemm, dependent=dependent),
        "binary": fake_cubin(str(gemm)),
        "binary_format": "cubin",
        "sources": {"kernel.cu": "// text\n"},
        "flags": (),
        "certificate": None,
        "timings": Timings(),
        "regime": "sustained",
        "role": "tuned",
    }
    return Contents(gemm=gemm, **values | about)


def packed(gemm: Gemm, **about: Any) -> bytes:
    return pack(contents(gemm, **about), SIGNER)


def certified(gemm: Gemm, *tests: str) -> bytes:
    """A kernel whose calls are launched dependently, with a certificate of these tests."""
    sha256 = read(packed(gemm, dependent=True), TRUST).manifest.kernel_sha256
    passed = [{"name": name, "passed": True} for name in tests]
    return packed(gemm, dependent=True, certificate={"kernel_sha256": sha256, "passed": True, "tests": passed})


def packed_set(gemm: Gemm, *highs: int) -> bytes:
    """A set with a kernel up to each of ``highs``."""
    lows = (gemm.m_min, *(high + 1 for high in highs))
    members = tuple(contents(gemm.with_(m=Range(low, high))) for low, high in zip(lows, highs, strict=False))
    return pack(SetContents(gemm=gemm, members=members, timings=Timings(), regime="sustained", role="fallback"), SIGNER)


class DependentBench(FakeBench):
    """Made as a ``Workbench`` is, whose builds are launched dependently. ``fates`` says what becomes of a config."""

    made: list[DependentBench] = []
    fates: Callable[[Config], str] = staticmethod(lambda _: "right")

    def __init__(self, device: Device, store: Store, signer: Signer, *, builder: str) -> None:
        super().__init__(fate=type(self).fates, store=store)
        self.device, self.signer, self.builder, self.closed = device, signer, builder, False
        self.made.append(self)

    def build(self, gemm: Gemm, config: Config, *, urgent: bool = False) -> Future[Binary]:
        built = super().build(gemm, config, urgent=urgent)
        if built.exception() is not None:
            return built
        future: Future[Binary] = Future()
        future.set_result(replace(built.result(), launch=launch(gemm, dependent=True)))
        return future

    def ended(self, builds: Collection[Future[Binary]], timeout_s: float = 0.1) -> set[Future[Binary]]:
        del timeout_s
        return set(builds)

    def close(self) -> None:
        self.closed = True
