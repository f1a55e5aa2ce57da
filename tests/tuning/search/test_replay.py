"""A stored trace, replayed, rebuilds the kernel that was measured."""

from __future__ import annotations

import json

from tirgemm.families import family_named
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.search.space_trace import replay, trace_of


def test_a_replayed_trace_builds_the_source_with_the_stored_hash() -> None:
    gemm, device = Gemm.parse("61x67x71:f16:nt"), named_device("sm_80")
    family = family_named("simt")
    default = family.default(gemm, device, "sustained")
    config = next(
        c
        for c in family.space(gemm, device)
        if c != default and all(rule.check(gemm, c, device) is None for rule in family.rules)
    )
    stored = json.loads(json.dumps(trace_of(gemm, device, config)))
    hashes = [build(gemm, c, device).source_sha256 for c in (config, replay(stored, gemm, device), default)]
    assert hashes[0] == hashes[1] != hashes[2]
