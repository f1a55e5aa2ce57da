"""Expressions, configs, spaces, launches and devices as values: they round-trip and refuse what is inconsistent."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tirgemm import Config, Device, Gemm, Range, expr
from tirgemm.config import Knob, Space
from tirgemm.device import Limits, is_device_key
from tirgemm.errors import CorruptArtifact, InvalidConfig, InvalidDevice, InvalidRequest
from tirgemm.expr import Dim
from tirgemm.launch import (
    KernelLaunch,
    Launch,
    Pointer,
    Scalar,
    Size,
    TensorMap,
    Workspace,
    scalar_args,
    tensor_args,
)
from tirgemm.tuning.budget import Budget


def _made(op: str, left: Dim, right: Dim) -> Dim:
    try:
        return expr.make(op, left, right)
    except ZeroDivisionError:  # what is known is folded, a division by a quotient of 0 too
        reject()


dims = st.recursive(
    st.one_of(st.integers(1, 500), st.just(expr.M)),
    lambda inner: st.builds(_made, st.sampled_from(["add", "mul", "ceildiv", "min", "max", "floordiv"]), inner, inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(dims, st.integers(1, 9000))
def test_expression_json_round_trips_to_the_same_value(dim: Dim, m: int) -> None:
    try:
        want = expr.evaluate(dim, m)
    except ZeroDivisionError:
        return
    assert expr.evaluate(expr.from_json(json.loads(json.dumps(expr.to_json(dim)))), m) == want


def test_expressions_fold_what_is_known() -> None:
    assert expr.ceildiv(1000, 128) == 8
    assert expr.M * 1 is expr.M
    assert expr.evaluate(expr.ceildiv(expr.M + 5, 8) * 3, 12) == 9


@pytest.mark.parametrize("bad", [True, None, "n", ["pow", 1, 2], ["add", 1], 1.5, ["add", 1, ["x"]]])
def test_malformed_expressions_are_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="expression"):
        expr.from_json(bad)


SPACE = Space("toy", (Knob("tile", (16, 32, 64)), Knob("fast", (False, True)), Knob("order", ("mn", "nm"))))


def test_space_numbers_every_point_once() -> None:
    points = list(SPACE)
    assert len(points) == SPACE.size == len(set(points)) == 12
    assert all(SPACE.config(SPACE.indices(point)) == point for point in points)


@pytest.mark.parametrize(
    "config",
    [
        Config("other", SPACE.at(0).knobs),
        SPACE.at(0).with_(tile=17),
        SPACE.at(0).with_(fast=1),
        Config("toy", (("tile", 16),)),
    ],
)
def test_a_config_outside_its_space_is_refused(config: Config) -> None:
    with pytest.raises(InvalidConfig):
        SPACE.check(config)


def test_config_digest_ignores_the_order_of_knobs() -> None:
    config = SPACE.at(5)
    assert Config("toy", tuple(reversed(config.knobs))).digest == config.digest
    assert Config.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.with_(tile=64).digest != config.with_(tile=16).digest


@pytest.mark.parametrize(
    "bad", [{}, {"family": 3, "knobs": {}}, {"family": "x", "knobs": {"a": []}}, {"family": "x", "knobs": 3}]
)
def test_malformed_configs_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        Config.from_json(bad)


def test_launch_round_trips_through_json() -> None:
    gemm = Gemm(Range(1, 999), 33, 65, layout="tn", beta=True, bias=True, alpha=True, batch=3)
    kernel = KernelLaunch(
        "gemm",
        (
            Pointer("a"),
            Scalar("alpha"),
            Size(expr.M, "i64"),
            TensorMap("b", "f16", (65, expr.M), (expr.M * 2,), (64, 64), (1, 1), swizzle=3),
        ),
        grid=(expr.ceildiv(expr.M, 128), 2, 1),
        block=(256, 1, 1),
        cluster=(2, 1, 1),
        shared_bytes=99,
        attributes=(("programmatic_dependent_launch", 1),),
    )
    launch = Launch(tensor_args(gemm), scalar_args(gemm), (kernel,), (Workspace("w", expr.M * 8, "zero"),))
    assert Launch.from_json(json.loads(json.dumps(launch.to_json()))) == launch
    assert launch.workspace_bytes(10) == 80
    assert [t.name for t in launch.tensors] == ["a", "b", "c", "bias", "d"]
    assert [s.name for s in launch.scalars] == ["alpha", "beta"]


@pytest.mark.parametrize("key", ["tensors", "kernels", "workspaces", "scalars"])
def test_a_launch_without_a_part_is_refused(key: str) -> None:
    gemm = Gemm(3, 5, 7)
    value = Launch(tensor_args(gemm), (), (KernelLaunch("k", (Pointer("a"),)),)).to_json()
    del value[key]
    with pytest.raises(CorruptArtifact):
        Launch.from_json(value)


H200 = Device(
    "cuda",
    "sm_90a",
    "NVIDIA H200",
    132,
    2**37,
    Limits(shared_per_block=232448),
    uuid="GPU-1",
    environment=(("driver", "580"),),
    peak_tflops=(("f16", 989.0),),
)


def test_device_round_trips_and_its_key_leaves_the_environment_out() -> None:
    assert Device.from_json(json.loads(json.dumps(H200.to_json()))) == H200
    assert H200.key == "cuda:sm_90a:nvidia-h200:132"
    other = H200.with_(environment=(("driver", "581"),), uuid="GPU-2")
    assert other.key == H200.key
    assert other.fingerprint != H200.fingerprint


@pytest.mark.parametrize("model", ["", "龙芯", "--"])
def test_a_model_without_a_letter_or_digit_of_a_key_has_its_kind_there(model: str) -> None:
    cpu = Device("cpu", "x86-64-v4", model, 2, 2**33)
    assert cpu.key.startswith("cpu:x86-64-v4:cpu:2:")
    assert is_device_key(cpu.key)
    gpu = H200.with_(model=model)
    assert gpu.key == "cuda:sm_90a:cuda:132"
    assert is_device_key(gpu.key)


def test_a_device_with_another_power_limit_is_another_device() -> None:
    limited = H200.with_(power_limit_w=450)
    assert limited.key == "cuda:sm_90a:nvidia-h200:132:450w"
    assert Device.from_json(json.loads(json.dumps(limited.to_json()))) == limited
    assert "power_limit_w" not in H200.to_json(), "kernels and documents of others stay what they are"


def test_forms_of_one_chip_are_different_devices_by_their_models() -> None:
    names = ("H200", "H200 NVL", "H100 80GB HBM3", "H100 PCIe", "H100 NVL", "H20", "H20-3e", "A100-SXM4-40GB")
    assert len({H200.with_(model=f"NVIDIA {name}").key for name in names}) == len(names)


def test_a_named_device_has_no_lock() -> None:
    with pytest.raises(InvalidDevice, match="only named"):
        _ = H200.with_(uuid="").lock_key


@pytest.mark.parametrize("change", [{"kind": "tpu"}, {"units": 0}, {"memory_bytes": 0}])
def test_impossible_devices_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(InvalidDevice):
        H200.with_(**change)


@pytest.mark.parametrize(
    ("trials", "seconds"),
    [(0, 1.0), (1.5, 1.0), (True, 1.0), (10**6, 1.0), (5, 0), (5, -1.0), (5, float("nan")), (5, 1e9), (5, "x")],
)
def test_budgets_outside_their_limits_are_refused(trials: object, seconds: object) -> None:
    with pytest.raises(InvalidRequest, match="budget"):
        Budget(cast(Any, trials), cast(Any, seconds))
