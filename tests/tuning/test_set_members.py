"""Members of a kernel set: certified and timed beside the default of their part."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.fake_workbench import FakeBench
from tirgemm import Budget, Config, Gemm
from tirgemm.gemm import Range
from tirgemm.tuning import set_members
from tirgemm.tuning.finish import Finalist
from tirgemm.tuning.kernel_set.partition import Segment
from tirgemm.tuning.tune import Tuning

ONE, OTHER = Config("made_up", (("tile", 1),)), Config("made_up", (("tile", 2),))


@pytest.mark.parametrize("same", [True, False])
def test_a_config_that_is_the_same_kernel_as_the_default_is_not_raced_against_it(
    monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    binaries: list[Any] = [
        SimpleNamespace(binary_sha256=text, launch=None) for text in ("one", "one" if same else "other")
    ]
    finalists = [Finalist(c, b, b"") for c, b in zip((ONE, OTHER), binaries, strict=True)]
    raced: list[tuple[Config, Config]] = []

    def certified(_: Tuning, winner: Finalist, beside: Finalist, *_plan: object) -> Any:
        raced.append((winner.config, beside.config))
        return SimpleNamespace(finalist=winner, certificate="passed", replaced="")

    monkeypatch.setattr(set_members, "_default", lambda _: OTHER)
    monkeypatch.setattr(set_members, "built_finalists", lambda *_: finalists)
    monkeypatch.setattr(set_members, "certified", certified)
    monkeypatch.setattr(set_members, "reported_timings", lambda *_: "timings")
    part = Tuning(Gemm(8, 64, 64).with_(m=Range(1, 8)), FakeBench(), "sustained", Budget.of("quick"))
    untouched: Any = None
    member = set_members.built_member(part, Segment(0, 0, ONE, 1.0), untouched, untouched)
    assert member.finalist.config == ONE
    assert raced == [(ONE, ONE if same else OTHER)]
