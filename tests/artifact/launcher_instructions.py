"""Instructions that a call takes in the launcher and in libtvm_ffi, by callgrind, without those of the fake driver.

    python -m tests.artifact.launcher_instructions

On a machine whose clock is shared they are what says whether a call became cheaper. It needs valgrind and its headers.
In the environment that has PyTorch it counts ``kernel(a, b, out=)`` on the CPU instead.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.helpers.fake_cuda import CudaTensor, compile_driver

ROOT = Path(__file__).parent.parent.parent
HAS_TORCH = importlib.util.find_spec("torch") is not None
CALLS = 200
SWITCH = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char* name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_driver(folder)
        (folder / "switch.c").write_text(SWITCH)
        switch = ["gcc", "-O1", "-shared", "-fPIC", str(folder / "switch.c"), "-o", str(folder / "switch.so")]
        subprocess.run(switch, check=True)
        out = folder / "counts"
        valgrind = ["valgrind", "--quiet", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        if not HAS_TORCH:
            environment["LD_LIBRARY_PATH"] = str(folder)
        child = [sys.executable, "-m", "tests.artifact.launcher_instructions", str(folder)]
        subprocess.run([*valgrind, *child], check=True, env=environment, cwd=ROOT)
        for dump in sorted(folder.glob("counts.*"), key=lambda path: int(path.suffix[1:])):
            text = dump.read_text()
            way = re.search(r"Trigger: Client Request: (.+)", text)
            if way is None:
                continue
            by_library = counts(text)
            ours = by_library["_launcher.so"] + by_library["libtvm_ffi.so"]
            others = ", ".join(f"{name} {count // CALLS}" for name, count in by_library.most_common(6))
            print(f"{way[1]:14} {ours // CALLS:6} of {sum(by_library.values()) // CALLS:6} ({others})")
    return 0


def counts(text: str) -> Counter[str]:
    """Instructions by library of one dump of callgrind, without those of functions that they call."""
    names: dict[str, str] = {}
    total: Counter[str] = Counter()
    library, skips = "", False
    for line in text.splitlines():
        if line.startswith("ob="):
            number, _, path = line[3:].partition(" ")
            names.setdefault(number, Path(path).name)
            library = names[number]
        elif line.startswith("cob="):
            number, _, path = line[4:].partition(" ")
            names.setdefault(number, Path(path).name)
        elif line.startswith("calls="):
            skips = True
        elif re.match(r"[+*\-\d]", line):
            if not skips:
                total[library] += int(line.split()[1])
            skips = False
    return total


def count(folder: Path) -> None:
    """The process that callgrind watches."""
    switch = ctypes.CDLL(str(folder / "switch.so"))
    for name, call in (torch_ways() if HAS_TORCH else ways()).items():
        for _ in range(20):
            call()
        switch.begin()
        for _ in range(CALLS):
            call()
        switch.end(name.encode())


def ways() -> dict[str, Callable[[], Any]]:
    """Calls of the launcher's own function on tensors of a GPU."""
    from tests.helpers.artifact_samples import fake_cubin
    from tirgemm.artifact import native
    from tirgemm.expr import M, ceildiv
    from tirgemm.gemm import Gemm, Range
    from tirgemm.hardware import named_device
    from tirgemm.launch import KernelLaunch, Launch, Pointer, Size, TensorMap, tensor_args

    def loaded(gemm: Gemm, *params: Any) -> dict[str, Any]:
        kernel = KernelLaunch("main__", params, (ceildiv(gemm.m_dim, 64), 1, 1), (128, 1, 1), (2, 1, 1), 1024)
        launch = Launch(tensor_args(gemm), (), (kernel,), ())
        return {"gemm": gemm.to_json(), "device": named_device("sm_90a").to_json(), "launch": launch.to_json()}

    ffi = native.tvm_ffi()
    a, b, d = (
        ffi.from_dlpack(CudaTensor(shape, address=address))
        for shape, address in (((57, 40), 0x1000000), ((24, 40), 0x2000000), ((57, 24), 0x3000000))
    )
    pointers, fixed = (Pointer("a"), Pointer("b"), Pointer("d")), Gemm(57, 24, 40, layout="nt")
    maps = (
        TensorMap("a", "f16", (40, M), (80,), (32, 64), (1, 1), 0, 3, 2, 0),
        TensorMap("b", "f16", (40, 24), (80,), (32, 24), (1, 1), 0, 3, 2, 0),
        TensorMap("d", "f16", (24, M), (48,), (24, 64), (1, 1), 0, 0, 2, 0),
    )
    ranged = fixed.with_(m=Range(1, 500))
    members = [
        loaded(fixed.with_(m=Range(low, high)), *pointers, Size(M))
        for low, high in ((1, 8), (9, 16), (17, 32), (33, 64), (65, 500))
    ]
    kernels = {
        "fixed": [loaded(fixed, *pointers)],
        "range": [loaded(ranged, *pointers, Size(M))],
        "maps": [loaded(ranged, *maps, Size(M))],
        "set of five": members,
    }
    functions = {
        name: native.load([fake_cubin()] * len(each), [json.dumps(kernel) for kernel in each]).call
        for name, each in kernels.items()
    }
    return {name: partial(function, a, b, d) for name, function in functions.items()}


def torch_ways() -> dict[str, Callable[[], Any]]:
    """Calls on PyTorch's tensors of the CPU, of a kernel that does next to nothing."""
    import torch

    from tests.helpers.artifact_samples import kernel
    from tirgemm import detect

    torch.set_grad_enabled(False)
    # valgrind's processor has fewer features than the one it runs on.
    small = kernel("1x2x2:f32:nt", device=detect.device("cpu").with_(features=()))
    a, b, out = torch.ones(1, 2), torch.ones(2, 2), torch.ones(1, 2)
    return {
        "kernel(out=)": lambda: small(a, b, out=out),
        "new a": lambda: small(a[:], b, out=out),
        "a[:]": lambda: a[:],
        "is_neg": a.is_neg,
        "is_grad_enabled": torch.is_grad_enabled,
        "nothing": lambda: None,
    }


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    count(Path(sys.argv[1]))
