"""Held-out folds of the ranking model: how good its first choices are for shapes that it has not seen.

    python benchmarks/zero_shot_folds.py tuning_db/shipped/nvidia-h200.jsonl.gz \
        tuning_db/shipped/nvidia-h100-80gb-hbm3.jsonl.gz --out benchmarks/results/nvidia-h200/zero_shot_folds.json

The (n, k) of the first file's records are dealt to ``--folds`` parts: a model is trained on all other problems, those
that the other files have of devices like the first one's among them, and both it and the analytic estimate rank the
configs that were recorded of the part's. A row says how fast the best of the first 1, 4 and 8 is, as a share of the
fastest recorded, and whether the problem is one of the published suites, to which the estimates' constants were fitted.
Where there are other files, a model of them alone ranks the configs too: what a device has before it has records of its
own. Needs no device.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tirgemm.bench.results import dump, environment
from tirgemm.bench.suites import named_suites, suite_named
from tirgemm.detect import device as detect
from tirgemm.gemm import Gemm
from tirgemm.tuning.ranking_training import (
    FIRST,
    PARAMETERS,
    ROUNDS,
    HeldOut,
    held_out,
    problem_rows,
    records_sha256,
    similar_devices,
)
from tirgemm.tuning_db.transfer import read_candidates, read_devices
from verification import command

ROOT = Path(__file__).resolve().parents[1]
SUITE = "zero_shot_folds"
FOLDS = 24


def row(ranked: HeldOut, published: Collection[Gemm]) -> dict[str, Any]:
    """One problem of a fold, as the file has it."""
    gemm = ranked.gemm
    return {
        "fold": f"{gemm.n}x{gemm.k}",
        "gemm": str(gemm),
        "regime": ranked.regime,
        "published": gemm in published,
        "configs": ranked.configs,
        "covered": ranked.covered,
        "times_away": None if ranked.times_away == float("inf") else round(ranked.times_away, 3),
        "estimate": [round(share, 5) for share in ranked.estimate],
        "model": [round(share, 5) for share in ranked.model],
    } | ({"others": [round(share, 5) for share in ranked.by_other_devices]} if ranked.by_other_devices else {})


def main() -> int:
    parser = command.parser((__doc__ or "").splitlines()[0], "--commit", "--out")
    parser.add_argument("records", type=Path, nargs="+", help="records files; the first device of the first")
    parser.add_argument("--folds", type=int, default=FOLDS, help="parts of the (n, k), each held out in turn")
    options = parser.parse_args()
    devices = [device for path in options.records for device in read_devices(path)]
    candidates = [candidate for path in options.records for candidate in read_candidates(path)]
    device = devices[0]
    problems = problem_rows(candidates, device)
    others = [rows for other in similar_devices(devices, device) for rows in problem_rows(candidates, other)]
    published = {gemm for name in named_suites() for gemm in suite_named(name).gemms}
    rows = [row(ranked, published) for ranked in held_out(problems, device, options.folds, others, apart=True)]
    rows.sort(key=lambda entry: (entry["fold"], entry["gemm"], entry["regime"]))
    about = environment(device.with_(environment=detect("cpu").environment), ROOT, options.commit)
    head = {
        "suite": SUITE,
        "environment": about,
        "records_sha256": records_sha256([*problems, *others]),
        "parameters": PARAMETERS | {"rounds": ROUNDS},
        "folds": options.folds,
        "first": list(FIRST),
    }
    options.out.write_text(dump(head | {"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
