"""What pages say of the evidence that kernels are right, held to the evidence files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tirgemm.bench import results

ROOT = Path(__file__).resolve().parents[2]

Evidence = list[dict[str, Any]]


def evidence(name: str) -> tuple[Evidence, Evidence]:
    """The mutants of a file of evidence, and those of them that were not caught."""
    rows = results.load(ROOT / "benchmarks" / "results" / f"{name}.json.gz")["rows"]
    return [row for row in rows if row["mutant"]], [row for row in rows if row["status"].startswith("not caught")]


def place(row: dict[str, Any]) -> tuple[str, str]:
    return row["where"].partition(": ")[2], row["what"]


def test_what_is_said_of_missed_mutants_is_what_the_evidence_has() -> None:
    text = " ".join((ROOT / "docs" / "wgmma.md").read_text().split())
    modelled, missed = evidence("cpu/wgmma.emulated")
    kernels = len({row["source_sha256"] for row in modelled})
    assert (
        f"The model** ran {len(modelled)} mutants of {kernels} kernels and missed {len(missed)}. All {len(missed)}"
        in text
    )
    assert f"Five of the {len(missed)} are of `wait_group.read`" in text
    assert sum("wait_group.read" in row["what"] for row in missed) == 5
    counts = Counter(row["what"].split(" removed")[0].split(" weakened")[0] for row in missed)
    assert counts["cp.async.bulk.wait_group.read 1"] == 2
    assert counts["cp.async.bulk.wait_group.read 0"] == 3
    clusters = {row["source_sha256"]: (row["config"]["cluster_m"], row["config"]["cluster_n"]) for row in modelled}
    assert Counter(m * n for m, n in clusters.values()) == {1: 7, 2: 4, 4: 1, 8: 1}
    assert (4, 2) in clusters.values()
    assert {row["gemm"] for row in missed if place(row) == ("epilogue", "bar.sync removed")} == {
        "60x40x2050:f16:nt:acc=f16:align=4",
        "1..7x40x1032:bf16:nn",
        "7x40x4104:bf16:tn:out=f32:lda=8",
    }, "each of which was looked up in its source"
    # What an H200 missed of other kernels, and is in no table.
    assert not {place(row) for row in missed} & {
        ("consumer", "wgmma.wait_group.sync.aligned 1 removed"),
        ("consumer", "wgmma.wait_group.sync.aligned 1 weakened"),
        ("epilogue", "cp.async.bulk.commit_group removed"),
        ("epilogue", "fence.proxy.async.shared::cta removed"),
        ("start", "tvm_builtin_cuda_cta_sync removed"),
    }
    ran, unseen = evidence("nvidia-h200/wgmma.mutants")
    kernels = len({row["source_sha256"] for row in ran})
    assert f"**An H200** ran {len(ran)} mutants of {kernels} kernels and missed {len(unseen)}." in text
    by_model = {row["key"]: row["status"] for row in modelled}
    caught = [place(row) for row in unseen if by_model[row["key"]] in ("emulator: wrong", "emulator: hang")]
    assert f"The model misses {len(unseen) - len(caught)} of them, too" in text
    assert f"The other {len(caught)} it catches" in text
    kinds = {
        "26 of `wgmma.wait_group 1`": ("wgmma.wait_group",),
        "18 of waits and groups of bulk copies": ("cp.async.bulk",),
        "eight of `fence.proxy.async`": ("fence.proxy.async",),
        "nine of barriers of a block or a cluster": ("bar.sync", "barrier.cluster", "tvm_builtin_cuda_cta_sync"),
        "and eight others": ("mbarrier", "griddepcontrol.wait", "wgmma.commit_group"),
    }
    assert all(said in text for said in kinds)
    counts = Counter(next(kind for kind, names in kinds.items() if what.startswith(names)) for _, what in caught)
    assert [counts[kind] for kind in kinds] == [26, 18, 8, 9, 8]
    assert {what for at, what in caught if at == "consumer"} == {
        "wgmma.wait_group.sync.aligned 1 removed",
        "wgmma.wait_group.sync.aligned 1 weakened",
        "wgmma.commit_group.sync.aligned removed",
        "fence.proxy.async.shared::cta removed",
        "mbarrier.arrive.shared::cluster.b64 removed",
    }


def random_cases(family: str) -> str:
    """What a page says of a family's file of random cases on an H200."""
    rows = results.load(ROOT / "benchmarks" / "results" / "nvidia-h200" / f"{family}.verified.json.gz")["rows"]
    passed, spilled = ([row for row in rows if row["status"] == status] for status in ("passed", "spilled"))
    assert len(passed) + len(spilled) == len(rows)
    assert all(row["checked"] and row["error"] <= 1 for row in rows)
    said = f"On an H200 {len(passed)} of {len(rows)} random cases passed"
    if not spilled:
        return f"{said}."
    (message,) = {row["message"] for row in spilled}
    size = message.removesuffix(" bytes are spilled")
    return f"{said}; the other {len(spilled)} are right, too, but spill {size} bytes each."


def sanitized(family: str) -> str:
    """What a page says of a family's file of compute-sanitizer on an H200."""
    rows = results.load(ROOT / "benchmarks" / "results" / "nvidia-h200" / f"{family}.sanitized.json.gz")["rows"]
    clean = [row for row in rows if "planted" not in row]
    kernels = {(row["gemm"], str(row["config"])) for row in clean}
    assert {row["status"] for row in clean} == {"clean"}
    assert Counter(row["tool"] for row in clean) == dict.fromkeys(["memcheck", "racecheck", "synccheck"], len(kernels))
    planted = {row["tool"]: (row["planted"], row["status"]) for row in rows if "planted" in row}
    assert planted == {"memcheck": ("outside", "noticed"), "racecheck": ("race", "noticed")}
    return (
        f"{len(kernels)} kernels ran under memcheck, racecheck and synccheck, and all are clean; "
        "a planted access out of bounds and a planted race were noticed."
    )


@pytest.mark.parametrize("family", ["mma", "wmma"])
def test_what_is_said_of_a_familys_evidence_is_what_its_files_have(family: str) -> None:
    text = " ".join((ROOT / "docs" / f"{family}.md").read_text().split())
    # Whether their sources are today's benchmarks/check.py asks, which a test of tests/bench runs.
    today = "These are [today's kernels](results.md#what-a-row-says)."
    ran_there = f"{random_cases(family)} {sanitized(family)} {today}"
    on_gpu, unseen = evidence(f"nvidia-h200/{family}.mutants")
    modelled = {row["key"]: row["status"] for row in evidence(f"cpu/{family}.emulated")[0]}
    by_model = sum(not modelled[row["key"]].startswith("not caught") for row in unseen)
    assert (
        f"{ran_there} Of {len(on_gpu)} mutants {len(on_gpu) - len(unseen)} are caught there, and of the "
        f"{len(unseen)} others {by_model} on the emulator."
    ) in text
    folder = ROOT / "benchmarks" / "results"
    rows = results.load(folder / "cpu" / f"{family}.emulated.json.gz")["rows"]
    assert {row["status"] for row in rows if not row["mutant"]} == {"passed"}
    ran, missed = evidence(f"cpu/{family}.emulated")
    caught = f"On the emulator {len(ran) - len(missed)} of {len(ran)} mutants are [caught](results.md#verification)"
    number = {5: "five", 6: "six"}[len(missed)]
    assert f"{caught}, and every unaltered kernel is right. The {number} that are not are all" in text
    assert {place(row) for row in missed} == {("end", "__syncthreads removed")}


def test_what_is_said_of_the_mutants_of_simt_is_what_the_evidence_has() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    ran, unseen = evidence("nvidia-h200/simt.mutants")
    modelled = {row["key"]: row["status"] for row in evidence("cpu/simt.emulated")[0]}
    (last,) = (row for row in unseen if modelled[row["key"]].startswith("not caught"))
    assert (
        f"All {len(ran)} mutants ran on the H200: {len(ran) - len(unseen)} are caught there, and of the {len(unseen)} "
        f"others {len(unseen) - 1} on the emulator."
    ) in text
    assert place(last) == ("steps", "__syncthreads removed")
    assert (last["config"]["pipeline"], last["config"]["barriers"]) == ("double", 2)
