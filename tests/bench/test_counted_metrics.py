"""Counters by name, the profiler's tables, and what is right and wrong of a prediction."""

from __future__ import annotations

import pytest

from benchmarks import counter_tables
from benchmarks.counted import metrics, ncu, traffic
from benchmarks.counted.metrics import BY_NAME, COUNTERS, chosen, compared, right, value
from tests.helpers.counter_samples import CONFLICTS, LOADS, LOG, OCCUPANCY
from tirgemm.errors import MeasurementFailed, Unsupported
from tirgemm.gemm import Gemm

# -- the profiler's table --------------------------------------------------------------------------


def test_launches_are_read_in_order_with_their_metrics() -> None:
    first, second, third = ncu.read(LOG)
    assert first == ncu.ProfiledLaunch(
        "simt_gemm_kernel", "(1024, 1, 1)", "(256, 1, 1)", {CONFLICTS: 0.0, LOADS: 402657486.0, OCCUPANCY: 24.87}
    )
    assert second.metrics == {CONFLICTS: 12.0, OCCUPANCY: 12.4}
    assert third.kernel == "wgmma_reduce_kernel"


def test_table_that_is_cut_off_keeps_its_whole_lines() -> None:
    assert [launch.kernel for launch in ncu.read(LOG[: LOG.rindex('"","43.1"')])] == [
        "simt_gemm_kernel",
        "wgmma_gemm_kernel",
    ]


def test_log_without_a_table_has_no_launches() -> None:
    assert ncu.read("==ERROR== The user does not have permission to access NVIDIA GPU Performance Counters\n") == []


def test_table_without_kernel_names_is_an_error() -> None:
    with pytest.raises(MeasurementFailed, match="ncu's table lacks Kernel Name"):
        ncu.read(LOG.replace('"Kernel Name"', '"Name"'))


def test_metrics_of_a_device_are_read_from_its_list() -> None:
    text = (
        "Device NVIDIA H200 (GH100)\n----- ---- ----\nMetric Name                        Metric Type  Metric Unit\n"
        "sm__warps_active                   Counter      warp   # of warps\n"
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld Counter sector # of sectors\n"
    )
    assert ncu.names(text) == {"sm__warps_active", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld"}


def test_counts_by_instruction_are_preferred_and_sums_need_every_part() -> None:
    sass = "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld"
    l1 = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld"
    assert chosen({sass, l1})["shared_load_wavefronts"] == f"{sass}.sum"
    assert chosen({l1}) == {"shared_load_wavefronts": f"{l1}.sum"}
    cache = "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache"
    assert "copy_sectors" not in chosen({f"{cache}_access"})
    both = chosen({f"{cache}_access", f"{cache}_bypass"})["copy_sectors"]
    assert value(both, {f"{cache}_access.sum": 3.0, f"{cache}_bypass.sum": 4.0}) == 7
    assert value(both, {f"{cache}_access.sum": 3.0}) is None


def test_without_a_list_the_common_metrics_are_asked_for() -> None:
    asked = chosen(frozenset())
    assert asked["shared_load_wavefronts"] == LOADS
    assert asked["occupancy_percent"] == OCCUPANCY
    assert not any("ldsm" in metric or "ldgsts" in metric for metric in asked.values())
    assert metrics.candidates(frozenset()) == sorted(set(asked.values()))


def test_best_metric_of_the_sm_and_of_the_l1_are_profiled() -> None:
    names = {
        "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld",
    }
    others = {"smsp__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld", "dram__bytes"}
    half = "l1tex__t_sectors_pipe_lsu_mem_global_op_ldgsts_cache_access"
    assert metrics.candidates(names | others | {half}) == sorted(f"{name}.sum" for name in names)


# -- right and wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "predicted", "counted", "requests", "expected"),
    [
        ("shared_load_wavefronts", 100, 100.9, None, True),
        ("shared_load_wavefronts", 100, 101.2, None, False),
        ("shared_load_wavefronts", 0, 1, None, False),
        ("shared_load_wavefronts", 0, 0, None, True),
        ("shared_load_conflicts", 0, 99, 100_000, True),
        ("shared_load_conflicts", 0, 100, 100_000, False),
        ("shared_load_conflicts", 0, 1, None, False),
        ("shared_load_conflicts", 5000, 5049, 100_000, True),
        ("shared_load_conflicts", 5000, 0, 100_000, False),
        ("occupancy_percent", 25.0, 12.5, None, True),
        ("occupancy_percent", 25.0, 25.2, None, True),
        ("occupancy_percent", 25.0, 25.3, None, False),
    ],
)
def test_judgement_is_the_issues(
    name: str, predicted: float, counted: float, requests: float | None, expected: bool
) -> None:
    assert right(BY_NAME[name], predicted, counted, requests) is expected


def test_rows_say_what_only_one_side_has() -> None:
    predicted = {"shared_loads": 8.0, "shared_load_conflicts": 0.0, "copies": 0.0, "matrix_loads": 4.0}
    counted = {"shared_loads": 8.0, "global_load_sectors": 32.0, "copies": 0.0}
    rows = {row["counter"]: row for row in compared("k", predicted, counted, dict.fromkeys(BY_NAME, "x__y.sum"))}
    assert set(rows) == {"shared_loads", "shared_load_conflicts", "matrix_loads", "global_load_sectors"}
    assert rows["shared_loads"]["right"] is True
    assert (rows["matrix_loads"]["counted"], "right" in rows["matrix_loads"]) == (None, False)
    assert (rows["global_load_sectors"]["predicted"], "right" in rows["global_load_sectors"]) == (None, False)


def test_conflicts_are_the_passes_beyond_the_fewest_where_passes_are_counted_by_instruction() -> None:
    """The L1's own counter of conflicts has arbitration in it: it is a bound."""
    passes = "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_st.sum"
    l1 = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum"
    named = {"shared_store_wavefronts": passes, "shared_store_conflicts": l1, "l1_store_conflicts": l1}
    predicted = {"shared_store_wavefronts": 64.0, "shared_store_conflicts": 32.0, "shared_store_fewest": 32.0}
    counted = {"shared_store_wavefronts": 64.0, "shared_store_conflicts": 70.0, "l1_store_conflicts": 70.0}
    rows = {row["counter"]: row for row in compared("k", predicted, counted, named)}
    assert {name: (row["predicted"], row["counted"], row["right"]) for name, row in rows.items()} == {
        "shared_store_wavefronts": (64, 64, True),
        "shared_store_conflicts": (32, 32, True),
        "l1_store_conflicts": (32, 70, True),
    }
    assert passes in str(rows["shared_store_conflicts"]["metric"])
    worse = {row["counter"]: row for row in compared("k", predicted, counted | {"l1_store_conflicts": 20.0}, named)}
    assert not worse["l1_store_conflicts"]["right"]
    more = {row["counter"]: row for row in compared("k", predicted, counted | {"shared_store_wavefronts": 66.0}, named)}
    assert not more["shared_store_conflicts"]["right"]
    assert not more["shared_store_wavefronts"]["right"]


def test_a_bound_is_right_where_less_is_counted_and_has_no_conflicts_to_compare() -> None:
    passes = "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_ld.sum"
    named = {"shared_load_wavefronts": passes, "shared_load_conflicts": CONFLICTS}
    predicted = {"shared_load_wavefronts": 64.0, "shared_load_conflicts": 0.0, "shared_load_fewest": 64.0}
    counted = {"shared_load_wavefronts": 60.0, "shared_load_conflicts": 1.0}
    (row,) = compared("k", predicted, counted, named, {"shared_load_wavefronts"})
    assert (row["counter"], row["right"], row["bound"]) == ("shared_load_wavefronts", True, True)
    (row,) = compared("k", predicted, counted | {"shared_load_wavefronts": 70.0}, named, {"shared_load_wavefronts"})
    assert not row["right"]


def test_matrix_loads_are_loads_where_the_l1_counts() -> None:
    predicted = {"shared_load_wavefronts": 8.0, "matrix_load_wavefronts": 4.0}
    (lumped,) = compared("k", predicted, {"shared_load_wavefronts": 12.0}, {"shared_load_wavefronts": LOADS})
    assert (lumped["predicted"], lumped["right"]) == (12.0, True)
    apart = {"shared_load_wavefronts": "sm__sass_a_op_ld.sum", "matrix_load_wavefronts": "sm__sass_a_op_ldsm.sum"}
    rows = compared("k", predicted, {"shared_load_wavefronts": 8.0, "matrix_load_wavefronts": 4.0}, apart)
    assert [row["right"] for row in rows] == [True, True]


def test_matrix_conflicts_counted_by_instruction_stay_apart_and_join_the_l1s_loads() -> None:
    by_l1 = {"shared_load_conflicts": CONFLICTS, "matrix_load_conflicts": "sm__sass_a_op_ldsm.sum"}
    predicted = {"shared_load_conflicts": 3.0, "matrix_load_conflicts": 12.0}
    rows = compared("k", predicted, {"shared_load_conflicts": 15.0, "matrix_load_conflicts": 12.0}, by_l1)
    assert [(row["counter"], row["predicted"], row["right"]) for row in rows] == [
        ("shared_load_conflicts", 15.0, True),
        ("matrix_load_conflicts", 12.0, True),
    ]
    (only,) = compared("k", {"matrix_load_conflicts": 12.0}, {"matrix_load_conflicts": 12.0}, by_l1)
    assert (only["counter"], only["right"]) == ("matrix_load_conflicts", True)


def test_stmatrix_is_counted_apart_from_stores_by_instruction_and_with_them_by_the_l1() -> None:
    predicted = {"shared_store_wavefronts": 8.0, "matrix_store_wavefronts": 4.0}
    l1 = {"shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum"}
    (lumped,) = compared("k", predicted, {"shared_store_wavefronts": 12.0}, l1)
    assert (lumped["counter"], lumped["predicted"], lumped["right"]) == ("shared_store_wavefronts", 12.0, True)
    sass = "sm__sass_l1tex_data_pipe_lsu_wavefronts_mem_shared_op_{}"
    apart = chosen({sass.format("st"), sass.format("stsm")})
    rows = compared("k", predicted, {"shared_store_wavefronts": 8.0, "matrix_store_wavefronts": 4.0}, apart)
    assert [row["right"] for row in rows] == [True, True]


def test_names_of_counters_are_one_each_and_conflicts_name_requests() -> None:
    assert len(BY_NAME) == len(COUNTERS)
    assert all(counter.requests in BY_NAME for counter in COUNTERS if counter.test == "conflicts")


def test_metrics_are_named_as_the_profiler_names_them() -> None:
    for counter in COUNTERS:
        for metric in counter.metrics:
            for name in metrics.base_names(metric):
                assert name == name.lower()
                assert "__" in name
                assert name.partition("__")[0] in ("sm", "smsp", "l1tex")


# -- what bounds kernels ---------------------------------------------------------------------------

_METRICS = traffic.chosen(frozenset({"dram__bytes_read", "l1tex__m_xbar2l1tex_read_bytes", "lts__throughput"}))
_MARK = ncu.ProfiledLaunch("void at::native::vectorized_elementwise_kernel<4>", "", "", {})


def _launch(name: str, ns: float, nbytes: float, percent: float) -> ncu.ProfiledLaunch:
    counts = {traffic.TIME: ns, _METRICS["memory_read"]: nbytes, _METRICS["l2_percent"]: percent}
    return ncu.ProfiledLaunch(name, "", "", counts)


def test_a_quantity_is_counted_by_the_first_metric_that_there_is() -> None:
    assert set(_METRICS) == {"memory_read", "l2_to_sms", "l2_percent"}
    tensor = traffic.chosen(frozenset({"sm__pipe_tensor_op_hmma_cycles_active", "sm__inst_executed_pipe_tensor"}))
    assert tensor["tensor_percent"].startswith("sm__pipe_tensor_op_hmma_cycles_active.")


def test_bytes_of_a_call_are_added_and_shares_are_means_by_time() -> None:
    launches = [_launch("gemm", 1000.0, 5e6, 50.0), _launch("splitK", 3000.0, 1e6, 10.0)]
    row = traffic.row(Gemm.parse("8x8x8:f16:nt"), ["gemm", "splitK"], [one.metrics for one in launches], _METRICS)
    assert (row["us"], row["memory_read"], row["l2_percent"]) == (4.0, 6e6, 20.0)
    assert "l2_to_sms" not in row, "what the profiler did not count is left out"


def test_launches_between_two_marks_are_one_product() -> None:
    one, two, three = (_launch(name, 1.0, 1.0, 1.0) for name in ("nvjet", "splitK", "nvjet"))
    assert traffic.by_product([_MARK, one, two, _MARK, three], 2) == [[one, two], [three]]
    with pytest.raises(MeasurementFailed, match=r"saw \[2, 0\] kernels of PyTorch's, where there are 2 products"):
        traffic.by_product([_MARK, one, two, _MARK], 2)


def test_the_kernels_of_one_variant_are_counted_with_their_configs() -> None:
    row = {"gemm": "64x64x64:f16:nt", "family": "wgmma", "status": "measured", "config": {"knobs": {"tile_m": 64}}}
    document = {"rows": [row | {"variant": "quick"}, row | {"variant": "zero_shot"}]}
    (case,) = traffic.cases(document, "quick")
    assert (str(case.gemm), case.family, case.knobs) == ("64x64x64:f16:nt", "wgmma", (("tile_m", 64),))


@pytest.mark.parametrize(
    "text", ["64x64x64:f16:nn", "64x64x64:f16:nt:bias", "64x64x64:f16:nt:batch=2", "1..64x64x64:f16:nt"]
)
def test_only_plain_products_are_counted_beside_pytorch(text: str) -> None:
    row = {"gemm": text, "family": "wgmma", "status": "measured", "variant": "quick", "config": {"knobs": {}}}
    with pytest.raises(Unsupported, match=r"is more than 64x64x64:f16:nt, which is all that can be counted"):
        traffic.cases({"rows": [row]}, "quick")


def test_what_was_not_counted_is_blank() -> None:
    row = {"us": 4.0, "memory_read": 4e6, "memory_written": 4e6}
    assert counter_tables._rates(row) == ["2.00", "", ""]


def test_a_file_of_one_contender_or_of_more_than_all_is_wrong() -> None:
    ours = {"gemm": "64x64x64:f16:nt", "contender": "tirgemm", "us": 5.0, "l2_percent": 101.0}
    assert list(traffic.faults({"rows": [ours]})) == [
        "64x64x64:f16:nt, tirgemm: l2_percent is 101.0",
        "64x64x64:f16:nt: only tirgemm was counted",
    ]
    both = [ours | {"l2_percent": 99.0}, ours | {"contender": "torch.matmul", "us": 0.0, "l2_percent": 1.0}]
    assert list(traffic.faults({"rows": both})) == ["64x64x64:f16:nt, torch.matmul: it takes 0.0 us"]
