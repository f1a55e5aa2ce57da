"""What a worker imports before its first answer: no PyTorch, and TVM only for a search."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# TVM is imported when the test lets it be; PyTorch, which would leave its mark, is a module of the test's own.
BESIDE_TVM = """
import sys, threading
from importlib.abc import MetaPathFinder
from pathlib import Path

released, asked = threading.Event(), threading.Event()

class Held(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "tvm":
            asked.set()
            released.wait()

sys.meta_path.insert(0, Held())
from tirgemm.service.jobs.engine import TunerImports

imports, never = TunerImports(), threading.Event()
imports.wait(never, tvm=False)
assert "tirgemm.tuning.set_tuning" in sys.modules
asked.wait()
assert "tvm.ir" not in sys.modules
released.set()
imports.wait(never, tvm=True)
assert "tvm.ir" in sys.modules
assert not Path(sys.argv[1], "imported").exists(), "PyTorch was imported with it"
__import__("torch")
assert Path(sys.argv[1], "imported").exists(), "and it may still be"
"""

FALLBACK = """
import sys
from pathlib import Path
from tirgemm.detect import device
from tirgemm.families import supporting
from tirgemm.families.choice import ranked_defaults
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.records.memory_store import MemoryStore
from tirgemm.tuning.workbench import Workbench

with Workbench(device("cpu"), MemoryStore(), lock_dir=Path(sys.argv[1]), processes=1) as bench:
    sys.modules["tvm"] = sys.modules["tvm_ffi"] = None
    from tirgemm.tuning.set_tuning import tuning_class

    gemm = Gemm.parse("33x17x19:f32:nt")
    record = tuning_class(gemm)(gemm, bench, "sustained").fallback()
    assert record.certificate is not None and record.certificate.passed
hopper = named_device("sm_90a")
for text in ("1001x1021x1027:f16:nt", "16x4096x4096:bf16:nn"):
    gemm = Gemm.parse(text)
    assert ranked_defaults(supporting(gemm, hopper), gemm, hopper, "sustained")
"""


def run(program: str, folder: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_fallback_does_not_wait_for_tvm_and_nothing_waits_for_pytorch(tmp_path: Path) -> None:
    torch = tmp_path / "torch.py"
    torch.write_text("from pathlib import Path\nPath(__file__).with_name('imported').touch()\n")
    run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{BESIDE_TVM}", tmp_path)


def test_a_fallback_takes_no_tvm_in_the_workers_own_process(tmp_path: Path) -> None:
    run(FALLBACK, tmp_path)
