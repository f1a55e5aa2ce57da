"""Arguments that ``accelerate`` takes or refuses before anything is done."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.helpers.sample_source import SampleSource
from tests.torch.acceleration.two_linears import NARROW, WIDE, accelerated, model, unchecked
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Range
from tirgemm.kernel_source import Preparation

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = pytest.mark.torch


def test_numbers_of_rows_are_problems_of_their_own() -> None:
    from tirgemm.torch import accelerate

    report = accelerate(model(), rows=[1, 16, Range(1, 64)], source=SampleSource(), policy="default", dry_run=True)
    assert [str(gemm) for gemm in report.gemms[:3]] == [
        "1x23x19:f32:nt:bias",
        "16x23x19:f32:nt:bias",
        "1..64x23x19:f32:nt:bias",
    ]
    refused: tuple[tuple[Any, str], ...] = (
        ([], "rows is empty"),
        (0, "rows is 0"),
        ([True], "rows is True"),
        (Range(5, 2), "rows is Range"),
        (16.0, r"rows is 16\.0; it must be a number from 1 to"),
        (None, "rows is None"),
        ("1..64", r"rows is '1\.\.64'; .*a range such as tirgemm\.Range\(1, 64\), or a list"),
        ([1, 16.0], r"rows is 16\.0"),
    )
    for wrong, says in refused:
        with pytest.raises(InvalidRequest, match=says):
            accelerate(model(), rows=wrong)
    with pytest.raises(InvalidRequest, match=r"model is tensor\(.*; give a torch\.nn\.Module"):
        accelerate(cast(Any, torch.ones(2)))
    with pytest.raises(InvalidRequest, match="policy is 'best'"):
        accelerate(model(), **unchecked(policy="best"))


def test_numbers_of_rows_may_be_integers_of_any_type() -> None:
    import numpy as np

    from tirgemm.torch import accelerate

    one: Any = np.int64(1)
    given: tuple[tuple[Any, list[int | Range]], ...] = (
        (np.int64(16), [16]),
        (np.array([3, 16]), [3, 16]),
        (torch.tensor(16), [16]),
        ([Range(one, 16)], [Range(1, 16)]),
    )
    for rows, expected in given:
        report = accelerate(model(), rows=rows, source=SampleSource(), policy="default", dry_run=True)
        assert [gemm.m for gemm in report.gemms[: len(expected)]] == expected
        assert {type(gemm.m) for gemm in report.gemms} <= {int, Range}


def test_a_source_and_a_client_are_not_given_together(table: Any) -> None:
    from tirgemm.torch import accelerate

    del table
    with pytest.raises(InvalidRequest, match="give either source or client, not both"):
        accelerate(model(), **unchecked(source=SampleSource(), client=object()))


@pytest.mark.parametrize("source", ["http://127.0.0.1:8000", SampleSource], ids=str)
def test_what_is_no_source_of_kernels_is_refused(source: Any) -> None:
    from tirgemm.torch import accelerate, routed

    with pytest.raises(InvalidRequest, match="give an object with the methods of"):
        accelerate(model(), source=source)
    with pytest.raises(InvalidRequest, match="give an object with the methods of"), routed(source=source):
        pass
    with pytest.raises(InvalidRequest, match=r"client is .*; give a tirgemm.Client"):
        accelerate(model(), client=source)


@pytest.mark.parametrize("wait", ["soon", -1, float("nan"), None], ids=repr)
def test_a_wait_of_no_number_is_refused_before_anything_is_done(wait: Any) -> None:
    from tirgemm.torch import accelerate

    source = SampleSource()
    with pytest.raises(InvalidRequest, match="it must be True, False or a number of seconds from 0"):
        accelerate(model(), source=source, policy="default", wait=wait)
    assert source.asked == []


@pytest.mark.parametrize("wait", ["soon", -1, float("nan"), []], ids=repr)
def test_a_report_is_waited_for_by_a_number_of_seconds(wait: Any) -> None:
    report = accelerated(model(), SampleSource(), policy="default")
    with pytest.raises(InvalidRequest, match="it must be True, False or a number of seconds from 0"):
        report.wait(wait)


@pytest.mark.parametrize("wait", [1e20, float("inf"), True])
def test_a_wait_beyond_what_a_thread_can_wait_has_no_end(wait: float, monkeypatch: pytest.MonkeyPatch) -> None:
    report, waited = accelerated(model(), SampleSource(), policy="default", wait=wait), []
    assert report.preparations[0].finished.is_set()
    monkeypatch.setattr(Preparation, "wait", lambda _, seconds: waited.append(seconds))
    report.wait(wait)
    assert waited == [None]


@pytest.mark.parametrize("name", ["dry_run", "prepack", "invariant", "dependent_launch", "measured"])
def test_a_flag_that_is_none_is_refused_before_anything_is_done(name: str) -> None:
    made, source = model(), SampleSource(stored=[WIDE, NARROW])
    with pytest.raises(InvalidRequest, match=f"^{name} is 'x'; it must be True"):
        accelerated(made, source, **{name: "x"})
    assert type(made[0]) is torch.nn.Linear
    assert source.asked == []


def test_without_the_tuner_kernels_are_those_that_are_registered(monkeypatch: pytest.MonkeyPatch, table: Any) -> None:
    import tirgemm
    from tirgemm.errors import MissingExtra
    from tirgemm.torch import accelerate

    def absent() -> None:
        raise MissingExtra("tirgemm.LocalKernels needs the extra tune")

    monkeypatch.setattr(tirgemm, "LocalKernels", absent, raising=False)
    table.add(SampleSource().kernel(WIDE, "tuned"))
    report = accelerate(model(), rows=Range(1, 64))
    assert [linear.replaced for linear in report.linears] == [True, False]
    assert report.linears[1].problems[0][1] == "no kernel: none is registered, and there is no source of kernels"
