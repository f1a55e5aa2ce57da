"""A builder for build processes that crashes, hangs, waits or refuses as its config says. No TVM."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from tests.waiting import PATIENCE_S
from tirgemm.config import Config
from tirgemm.device import Device
from tirgemm.gemm import Gemm

GEMM = Gemm(37, 41, 43, "f32")
DEVICE = Device("cpu", "x86-64-v3", "planted", 1, 2**30, uuid="cpu-planted")
BUILDER = """
import os, signal, sys, time
from tirgemm.errors import BuildFailed, InvalidConfig

def build(gemm, config, device):
    what = config["what"]
    if what == "segfault":
        print("about to read address 0", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if what.startswith("/") and not os.path.exists(what):
        open(what, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang":
        time.sleep(600)
    if what == "refuse":
        raise BuildFailed("ptxas: too many registers")
    if what == "invalid":
        raise InvalidConfig("knob bm is 3")
    if what == "no space":
        raise OSError("No space left on device")
    if what == "bug":
        raise ZeroDivisionError("in the builder")
    if what == "nap":
        time.sleep(0.3)
    if what.startswith("behind "):
        while not os.path.exists(what.removeprefix("behind ")):
            time.sleep(0.01)
    if what == "noise":
        os.write(1, b"x" * 100_000)
    return (what, str(gemm), device.model, os.getpid())
"""


def config(what: str) -> Config:
    return Config("planted", (("what", what),))


def answer(build: Future[Any]) -> tuple[str, str, str, int]:
    """What the builder returned: what the config says, the GEMM, the device's model and the process."""
    returned: tuple[str, str, str, int] = build.result(PATIENCE_S)
    return returned
