"""What wgmma's page says of problems with few rows in ``isolated`` is what the tables of results have."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import geometric_mean

DOCS = Path(__file__).resolve().parents[2] / "docs"
# The rows of a problem, after which its name goes on.
FEW = r"\| `(?:1|16)x"


def table(name: str) -> str:
    """What stands between the markers of a table of the H200's results."""
    text = (DOCS / "results.md").read_text()
    return text.partition(f"<!-- results:nvidia-h200/{name} -->")[2].partition("<!-- /results:")[0]


def ratios(regime: str) -> tuple[list[float], list[float]]:
    """cuBLASLt's time over that of what is recorded and of the default, of every problem with m of 1 or 16."""
    recorded, default = [], []
    for part in re.split(r"\n(?=\w+: NVIDIA)", table("shapes"))[1:]:
        heading, *rows = part.strip().splitlines()
        if f", {regime}, " not in heading:
            continue
        (names,) = [row.split(" | ") for row in rows if row.startswith("| gemm |")]
        for row in rows:
            if re.match(FEW, row):
                cells = dict(zip(names, row.split(" | "), strict=True))
                recorded.append(float(cells["× cublaslt_best"]))
                default.append(recorded[-1] * float(cells["default / tuned |"].strip(" |")))
    return recorded, default


def behind(of: list[float]) -> int:
    return sum(ratio < 1 for ratio in of)


def test_few_rows_one_by_one_have_the_figures_that_are_stated() -> None:
    (row,) = re.findall(r"^\| 6\. Few rows .*$", (DOCS / "wgmma.md").read_text(), re.M)
    recorded, default = ratios("isolated")
    assert f" {len(recorded)} problems of suites with m of 1 or 16 " in row
    assert (
        f"what is recorded has {geometric_mean(recorded):.2f} ({min(recorded):.3f}), is behind on {behind(recorded)} of"
        in row
    )
    assert (
        f"the default has {geometric_mean(default):.2f} ({min(default):.3f}), and is behind on {behind(default)} "
        in row
    )
    shares = re.findall(r"25 MB of weights\*\* \| (\w+) .*?\*\*([\d.]+)%\*\*", table("bandwidth"))
    assert [regime for regime, _ in shares] == ["sustained", "isolated"]
    read = dict(shares)
    assert f"[{read['isolated']} %](results.md#share-of-the-read-bandwidth-for-few-rows)" in row
    assert f"({read['sustained']} % in `sustained`)" in row
    assert "not measured yet" not in row
