"""Hardware counters beside what the analysis predicts, for the kernels of ``benchmarks/counted/cases.json``.

    python -m benchmarks.counters --device cuda:0 --seconds 400 --out benchmarks/results/nvidia-h200/counters.json

Kernels are built and predicted first, in many processes; then Nsight Compute profiles each once, many in one process.
Beside the results lie the profiler's logs (``counters.ncu.N.csv``), the device's metrics and the cubins: ``--again
FOLDER`` predicts anew for those and compares with those, anywhere; the file's ``predicted_commit`` says by which
commit. On a named device (``--device sm_90a``) kernels are built and predicted only. The exit code is 1 where
a prediction is wrong or a case is missing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

from benchmarks.counted import ncu
from benchmarks.counted.cases import cases
from benchmarks.counted.document import COUNTED, CountedKernel, documented, summary
from benchmarks.counted.metrics import base_names, candidates, chosen
from benchmarks.counted.profiling import CountedRun, attribute, count, keep, prepared
from tirgemm.bench.results import dump, environment
from tirgemm.config import Config
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.hardware import named_device
from verification import command

ROOT = Path(__file__).resolve().parents[1]
# What is kept of the list of the device's metrics, to choose others from.
_OF_MEMORY = re.compile(r"shared|ldsm|ldgsts|op_(ld|st)|pipe_lsu|inst_executed_op")


def main() -> int:
    options = _options()
    deadline = time.monotonic() + options.seconds
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if options.again:
        device, kernels, metrics, about = repeated(options.again, options.processes)
    else:
        device = detect_device(options.device)
        wanted = [case for case in cases() if not options.case or any(case.name.startswith(p) for p in options.case)]
        kernels = prepared([(case, device, None, None) for case in wanted], options.processes)
        print(f"{len(kernels)} cases, {sum(not k.message for k in kernels)} built and predicted", flush=True)
        metrics, about = {}, environment(device, ROOT, options.commit)
        if device.present:
            known = ncu.available(device.arch)
            metrics = chosen(known)
            options.out.with_suffix(".metrics.txt").write_text("\n".join(sorted(filter(_OF_MEMORY.search, known))))
            keep(kernels, options.out.with_suffix(".cubins.zip"))
            count(kernels, device, candidates(known), options.out.with_suffix(".ncu"), deadline)
    document = documented(kernels, metrics, about)
    if options.again:
        document |= {"predicted_commit": environment(device, ROOT, options.commit)["commit"]}
    options.out.write_text(dump(document))
    for line in summary(document):
        print(line)
    return int(any(row.get("right") is False for row in document["rows"]) or any(k.message for k in kernels))


def repeated(
    folder: Path, processes: int | None = None
) -> tuple[Device, list[CountedKernel], dict[str, str], dict[str, Any]]:
    """An earlier run's device, its counted cases predicted anew, its metrics and its environment."""
    candidates = [path for path in folder.glob("*.json") if path.with_suffix(".cubins.zip").exists()]
    if len(candidates) != 1:
        raise InvalidRequest(
            f"{folder} has {len(candidates)} results files with a .cubins.zip beside them; --again takes one"
        )
    (results,) = candidates
    earlier = json.loads(results.read_text())
    arch = earlier["environment"]["device_key"].split(":")[1]
    device, named = named_device(arch), {case.name: case for case in cases()}
    counted = [case for case in earlier["cases"] if case["status"] == COUNTED and case["name"] in named]
    with zipfile.ZipFile(results.with_suffix(".cubins.zip")) as kept:
        wanted: list[CountedRun] = [
            (named[c["name"]], device, Config(c["family"], tuple(c["config"].items())), kept.read(c["name"]))
            for c in counted
        ]
    kernels = prepared(wanted, processes)
    seen: set[str] = set()
    for log in dict.fromkeys(case["log"] for case in counted):
        launches = ncu.read((folder / log).read_text(errors="replace"))
        of_log = [kernel for kernel, case in zip(kernels, counted, strict=True) if case["log"] == log]
        attribute(of_log, launches, log)
        seen |= {base for launch in launches for name in launch.metrics for base in base_names(name)}
    return device, kernels, chosen(seen), earlier["environment"]


def _options() -> argparse.Namespace:
    made = command.parser(__doc__, "--processes", "--commit", "--out")
    made.add_argument(
        "--device", default=None, help="cuda:0, or an architecture to predict only (default: the first GPU)"
    )
    made.add_argument("--seconds", type=float, default=400.0, help="begin nothing after so many")
    made.add_argument("--case", action="append", help="only cases whose name begins so (again for more)")
    made.add_argument("--again", type=Path, metavar="FOLDER", help="an earlier run's files, to compare with once more")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
