"""Choices of a version of the program for the problems of a suite: the default's config, and that of a fresh search.

    python benchmarks/versions/choices.py redesign --tree CHECKOUT --device cuda:0 --out before.json

Runs the program of the checkout ``--tree``, of any version since 882d4fb: of it nothing is used but what all of them
have. ``benchmarks/versions/race.py`` times what two versions have chosen side by side.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

SUITES = Path(__file__).resolve().parents[1] / "suites"


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    sys.path.insert(0, str(options.tree))
    tirgemm: Any = importlib.import_module("tirgemm")
    tuning: Any = importlib.import_module("tirgemm.tuning.tune")
    workbench: Any = importlib.import_module("tirgemm.tuning.workbench")
    if options.tree.resolve() not in Path(tirgemm.__file__).resolve().parents:
        print(f"error: tirgemm was imported from {tirgemm.__file__}, not from {options.tree}", file=sys.stderr)
        return 2
    device = importlib.import_module("tirgemm.detect").device(options.device)
    budget = tirgemm.Budget(trials=options.trials, seconds=options.seconds)
    choices: dict[str, dict[str, Any]] = {}
    with workbench.Workbench(device, _memory_store(), processes=options.processes) as bench:
        bench.warm()
        for text in json.loads((SUITES / f"{options.suite}.json").read_text())["gemms"]:
            began = time.monotonic()
            made = tuning.Tuning(tirgemm.Gemm.parse(text), bench, options.regime, budget)
            default = made.default()[1]
            record = made.run()
            taken = round(time.monotonic() - began, 2)
            choices[text] = {"default": default.to_json(), "tuned": record.config.to_json(), "seconds": taken}
            print(f"{text} {taken} s", flush=True)
            document = {"commit": options.commit, "regime": options.regime, "trials": options.trials}
            options.out.write_text(json.dumps(document | {"choices": choices}, indent=1) + "\n")
    return 0


def _memory_store() -> Any:
    """A store in memory; the module moved."""
    try:
        return importlib.import_module("tirgemm.tuning.records.memory_store").MemoryStore()
    except ModuleNotFoundError:
        return importlib.import_module("tirgemm.tuning.memory_store").MemoryStore()


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("suite", help="of benchmarks/suites")
    made.add_argument("--tree", type=Path, required=True, help="the checkout whose program chooses")
    made.add_argument("--commit", required=True, help="that checkout's commit")
    made.add_argument("--device", default="cuda:0")
    made.add_argument("--regime", default="sustained")
    made.add_argument("--trials", type=int, default=32)
    made.add_argument("--seconds", type=float, default=60.0, help="of each search, at most")
    made.add_argument("--processes", type=int, default=None, help="build processes")
    made.add_argument("--out", type=Path, required=True)
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
