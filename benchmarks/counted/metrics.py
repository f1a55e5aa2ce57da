"""The counters that are compared, the profiler's metrics that count each, and when a prediction is right."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal

# A prediction is right within this share of what is counted.
TOLERANCE = 0.01
# A predicted zero is right where fewer conflicts are counted than this share of the requests.
STRAY_CONFLICTS = 0.001

Agreement = Literal["close", "conflicts", "at_most", "at_least"]


@dataclass(frozen=True, slots=True)
class CountedMetric:
    """One thing that is predicted and counted, over a whole kernel.

    ``metrics``: the profiler's names for it, best first, sums joined by ``+``; the first that the device has is taken.
    ``test``: how the two are compared: ``close`` within TOLERANCE; ``conflicts``, where a predicted zero may meet
    strays; ``at_most`` and ``at_least``, where the prediction is a bound of what is counted. ``requests``: of
    conflicts, the counter of the requests that they are measured against. ``beyond``: the counter of wavefronts whose
    excess over the fewest this is, where it is counted by instruction.
    """

    name: str
    metrics: tuple[str, ...]
    test: Agreement = "close"
    requests: str = ""
    beyond: str = ""


def _counted(*names: str) -> tuple[str, ...]:
    return tuple(f"{name}.sum" for name in names)


def _conflicts(op: str) -> tuple[str, ...]:
    """By instruction where the SM counts so, else by the L1's data stage, where neighbours' traffic may be in it."""
    return _counted(
        f"sm__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_{op}",
        f"smsp__sass_l1tex_data_bank_conflicts_pipe_lsu_mem_shared_op_{op}",
        f"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{op}",
    )


def _wavefronts(op: str) -> tuple[str, ...]:
    return _counted(
        f"sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{op}",
        f"smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{op}",
        f"l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{op}",
    )


def _instructions(op: str) -> tuple[str, ...]:
    return _counted(
        f"sm__sass_inst_executed_op_{op}", f"smsp__sass_inst_executed_op_{op}", f"smsp__inst_executed_op_{op}"
    )


def _l1(what: str, op: str) -> tuple[str, ...]:
    return _counted(f"l1tex__t_{what}_pipe_lsu_mem_global_op_{op}")


def _both(name: str) -> tuple[str, ...]:
    """cp.async through L1 and past it."""
    return (f"{name}_access.sum+{name}_bypass.sum",)


def _copied(what: str) -> tuple[str, ...]:
    """What cp.async reads of global memory; past L1 the H200 counts it by instruction alone."""
    name = f"t_{what}_pipe_lsu_mem_global_op_ldgsts"
    return (
        *_counted(f"sm__sass_l1tex_{name}", f"smsp__sass_l1tex_{name}", f"l1tex__{name}"),
        *_both(f"l1tex__{name}_cache"),
    )


COUNTERS: tuple[CountedMetric, ...] = (
    # Instructions of a warp.
    CountedMetric("shared_loads", _instructions("shared_ld")),
    CountedMetric("shared_stores", _instructions("shared_st")),
    CountedMetric("matrix_loads", _instructions("ldsm")),
    CountedMetric("matrix_stores", _instructions("shared_stsm")),
    CountedMetric("copies", (*_instructions("ldgsts"), *_both("smsp__sass_inst_executed_op_ldgsts_cache"))),
    CountedMetric("global_loads", _instructions("global_ld")),
    CountedMetric("global_stores", _instructions("global_st")),
    CountedMetric("shared_load_wavefronts", _wavefronts("ld")),
    CountedMetric("shared_store_wavefronts", _wavefronts("st")),
    CountedMetric("matrix_load_wavefronts", _wavefronts("ldsm")),
    CountedMetric("matrix_store_wavefronts", _wavefronts("stsm")),
    CountedMetric("copy_wavefronts", _wavefronts("ldgsts")),
    CountedMetric("shared_wavefronts", _counted("l1tex__data_pipe_lsu_wavefronts_mem_shared")),
    CountedMetric("shared_load_conflicts", _conflicts("ld"), "conflicts", "shared_loads", "shared_load_wavefronts"),
    CountedMetric(
        "shared_store_conflicts",
        _conflicts("st"),
        "conflicts",
        "shared_stores",
        "shared_store_wavefronts",
    ),
    # The L1's own: also counts what requests of one pipe wait for those of another, which no address tells.
    CountedMetric("l1_load_conflicts", _counted("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld"), "at_least"),
    CountedMetric("l1_store_conflicts", _counted("l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st"), "at_least"),
    CountedMetric("matrix_load_conflicts", _conflicts("ldsm"), "conflicts", "matrix_loads"),
    CountedMetric("matrix_store_conflicts", _conflicts("stsm"), "conflicts", "matrix_stores"),
    CountedMetric("copy_conflicts", _conflicts("ldgsts"), "conflicts", "copies"),
    CountedMetric("global_load_requests", _l1("requests", "ld")),
    CountedMetric("global_load_sectors", _l1("sectors", "ld")),
    CountedMetric("global_store_requests", _l1("requests", "st")),
    CountedMetric("global_store_sectors", _l1("sectors", "st")),
    CountedMetric("copy_requests", _copied("requests")),
    CountedMetric("copy_sectors", _copied("sectors")),
    # Resident warps in percent of what the SMs can hold: predicted is what fits.
    CountedMetric("occupancy_percent", ("sm__warps_active.avg.pct_of_peak_sustained_active",), "at_most"),
)
BY_NAME = {counter.name: counter for counter in COUNTERS}
_REQUESTS = ("shared_loads", "shared_stores", "matrix_loads", "matrix_stores", "copies")
# The L1's data stage counts ldmatrix among the loads and stmatrix among the stores; counted by instruction they are
# apart.
_LUMPED = {
    f"shared_{op}_{what}": f"matrix_{op}_{what}" for op in ("load", "store") for what in ("wavefronts", "conflicts")
}


def base_names(metric: str) -> list[str]:
    """The metrics whose sum ``metric`` is, without what is done over the units (``.sum``)."""
    return [part.partition(".")[0] for part in metric.split("+")]


def value(metric: str, metrics: Mapping[str, float]) -> float | None:
    """``metric``, a sum maybe, of what was profiled; None where a part is absent."""
    parts = [metrics.get(part) for part in metric.split("+")]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def chosen(available: AbstractSet[str]) -> dict[str, str]:
    """Counter -> the metric that counts it, of those whose base name the profiler says that it has.

    Where nothing is listed (the query failed) the last metric of those that every device since sm_80 has.
    """
    if not available:
        return {c.name: c.metrics[-1] for c in COUNTERS if not any(w in c.name for w in ("matrix", "cop"))}
    metrics = {}
    for counter in COUNTERS:
        metric = next((m for m in counter.metrics if all(name in available for name in base_names(m))), None)
        if metric is not None:
            metrics[counter.name] = metric
    return metrics


def candidates(available: AbstractSet[str]) -> list[str]:
    """What to profile: of each counter the best metric of the SM's and the best of the L1's, chosen or not. The
    profiler's log keeps both, so that another choice needs no new run; more of the same would only be more passes.
    """
    metrics: set[str] = set(chosen(available).values())
    for counter in COUNTERS:
        had = [metric for metric in counter.metrics if all(name in available for name in base_names(metric))]
        for of_l1 in (False, True):
            metrics |= set([metric for metric in had if metric.startswith("l1tex__") is of_l1][:1])
    return sorted({part for metric in metrics for part in metric.split("+")})


def right(counter: CountedMetric, predicted: float, counted: float, requests: float | None) -> bool:
    """Whether ``predicted`` is right about ``counted``; ``requests``: what was counted of ``counter.requests``."""
    if counter.test == "at_most":
        return counted <= predicted * (1 + TOLERANCE)
    if counter.test == "at_least":
        return counted >= predicted * (1 - TOLERANCE)
    if counter.test == "conflicts" and predicted == 0:
        return counted == 0 or (requests is not None and counted < STRAY_CONFLICTS * requests)
    return abs(predicted - counted) <= TOLERANCE * counted


def judged_by(counter: CountedMetric, *, bound: bool) -> CountedMetric:
    """``counter`` as it is judged where the prediction is only a bound."""
    return replace(counter, test="at_most") if bound and counter.test == "close" else counter


def compared(
    kernel: str,
    predicted: Mapping[str, float],
    counted: Mapping[str, float],
    metrics: Mapping[str, str],
    bounds: AbstractSet[str] = frozenset(),
) -> list[dict[str, object]]:
    """A row for every counter that is predicted, and for every one that is counted and not zero.

    Predictions of ``bounds`` are the most that can be counted, which their rows say.

    ``metrics``: which metric counted each (``chosen``). What only one side has is null on the other: nobody reads it as
    zero. Conflicts without requests of their own kind are measured against all requests to shared memory.
    """
    predicted, counted, metrics = dict(predicted), dict(counted), dict(metrics)
    for counter in COUNTERS:
        fewest = predicted.pop(counter.beyond.replace("wavefronts", "fewest"), None) if counter.beyond else None
        passes = metrics.get(counter.beyond, "")
        if counter.beyond in bounds:
            # Beyond the fewest of how many requests is not known.
            predicted.pop(counter.name, None)
            counted.pop(counter.name, None)
            continue
        if fewest is not None and passes.startswith("sm") and counter.beyond in counted:
            counted[counter.name] = counted[counter.beyond] - fewest
            metrics[counter.name] = f"{passes} - {fewest:.0f}, the fewest"
    for op in ("load", "store"):
        parts = [predicted.get(f"{kind}_{op}_conflicts") for kind in ("shared", "matrix")]
        if f"l1_{op}_conflicts" in counted and any(part is not None for part in parts):
            predicted[f"l1_{op}_conflicts"] = sum(part or 0.0 for part in parts)
    for whole, part in _LUMPED.items():
        alone = part in metrics
        if part in predicted and metrics.get(whole, "").startswith("l1tex__") and (whole in counted or not alone):
            predicted[whole] = predicted.get(whole, 0.0) + predicted[part]
            if not alone:
                del predicted[part]
    rows: list[dict[str, object]] = []
    for counter in COUNTERS:
        mine, theirs = predicted.get(counter.name), counted.get(counter.name)
        asked = mine is not None and counter.test == "conflicts" and predicted.get(counter.requests)
        if not mine and not theirs and not asked:
            continue
        row: dict[str, object] = {"kernel": kernel, "counter": counter.name, "predicted": mine, "counted": theirs}
        if theirs is not None:
            row["metric"] = metrics[counter.name]
        if mine is not None and theirs is not None:
            if counter.name in bounds:
                row["bound"] = True
            judged = judged_by(counter, bound=counter.name in bounds)
            row["right"] = right(judged, mine, theirs, stray_base(counter, counted))
        rows.append(row)
    return rows


def stray_base(counter: CountedMetric, counted: Mapping[str, float]) -> float | None:
    """The counted requests that stray conflicts are measured against; None where none are known."""
    known = [counted[name] for name in _REQUESTS if counted.get(name)]
    return counted.get(counter.requests) or (sum(known) if known else None)
