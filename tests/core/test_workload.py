"""The problem in TensorIR: its parameters, its blocks, and its meaning when it is simply compiled."""

from __future__ import annotations

import pytest
from tvm import IRModule, tirx
from tvm.s_tir import Schedule
from tvm.tirx.buffer import is_buffer_var

from tests.contract.families.cpu_runner import run
from tirgemm.detect import device as detect
from tirgemm.families.base import Program
from tirgemm.gemm import Gemm, Range
from tirgemm.launch import KernelLaunch, Launch, Pointer, Scalar, Size, scalar_args, tensor_args
from tirgemm.workload import dense_strides, index_dtype, workload
from verification.emulator.operands import KernelCall


def _names(text: str) -> list[str]:
    return [var.name for var in workload(Gemm.parse(text)).params]


def test_parameters_are_tensors_then_scalars_then_m() -> None:
    assert _names("7x9x11:f16:nt") == ["a", "b", "d"]
    assert _names("1..7x9x11:f16:nt:alpha:beta:bias") == ["a", "b", "c", "bias", "d", "alpha", "beta", "m"]


@pytest.mark.parametrize("text", ["7x9x11:f16:nt", "7x9x11:bf16:tt:batch=3:alpha:act=gelu", "2..7x9x11:f32:tn:beta"])
def test_the_two_blocks_can_be_scheduled_by_name(text: str) -> None:
    schedule = Schedule(workload(Gemm.parse(text)))
    batched = "batch" in text
    assert len(schedule.get_loops(schedule.get_sblock("gemm"))) == 3 + batched
    assert len(schedule.get_loops(schedule.get_sblock("epilogue"))) == 2 + batched
    *_, i, _, p = schedule.get_loops(schedule.get_sblock("gemm"))
    schedule.split(i, [None, 4])
    schedule.decompose_reduction(schedule.get_sblock("gemm"), p)


def test_gaps_between_rows_become_strides_and_dense_operands_have_none() -> None:
    a, b, d = workload(Gemm.parse("7x9x11:f16:nt:lda=13:ldd=10")).params
    assert all(is_buffer_var(v) for v in (a, b, d))
    assert [int(s) for s in a.ty.strides] == [13, 1]
    assert list(b.ty.strides) == []
    assert [int(s) for s in d.ty.strides] == [10, 1]


def test_offsets_beyond_int32_are_computed_in_int64() -> None:
    assert index_dtype(Gemm.parse("46340x46340x33:f16:nt")) == "int32"
    assert index_dtype(Gemm.parse("46341x46341x33:f16:nt")) == "int64"
    large = workload(Gemm.parse("46341x46341x33:f16:nt"))
    assert {str(extent.ty.dtype) for extent in large.params[0].ty.shape} == {"int64"}


def test_fp16_accumulation_sums_in_fp16() -> None:
    script = workload(Gemm.parse("7x9x11:f16:nn:acc=f16")).script()
    assert 'acc = T.sblock_alloc_buffer((7, 9), "float16")' in script


def test_dense_strides_of_a_shape() -> None:
    assert dense_strides((5, 7, 3)) == (21, 3, 1)
    assert dense_strides((4,)) == (1,)


@pytest.mark.parametrize(
    "text", ["5x6x7:f32:nn", "5x6x7:f32:tt:lda=9:ldd=8:alpha:beta:bias:act=relu", "5x6x7:f16:nt:batch=2:act=silu"]
)
def test_compiled_as_it_is_it_computes_the_problem(text: str) -> None:
    gemm = Gemm.parse(text)
    plain = workload(gemm)
    block = tirx.Var("block", "int32")
    func = tirx.PrimFunc([*plain.params, block], plain.body, plain.ret_type, plain.attrs)
    size = (Size(gemm.m_dim),) if isinstance(gemm.m, Range) else ()
    params = (*(Pointer(name) for name in (*gemm.inputs, "d")), *(Scalar(name) for name in gemm.scalars), *size)
    launch = Launch(tensor_args(gemm), scalar_args(gemm), (KernelLaunch("main", params),))
    program = Program(IRModule({"main": func.with_attr("global_symbol", "main")}), launch)
    for m in {gemm.m_min, gemm.m_max}:
        case = KernelCall.random(gemm, m, seed=5)
        case.check(run(program, case, detect("cpu")))
