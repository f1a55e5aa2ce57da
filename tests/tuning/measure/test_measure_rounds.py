"""How blocks alternate, when enough is enough, what a measurement was taken under, and what the CPU baseline
computes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from tirgemm.artifact import Signer
from tirgemm.detect import device as detect
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.launch import tensor_args
from tirgemm.reference.numbers import activate, decode, encode
from tirgemm.rounds import MOST_SAMPLES, StoppingRule, alternate, buffer_assignment, settle, turn, warm_up
from tirgemm.tuning.measure import Measurer
from tirgemm.tuning.measure.baselines.numpy_baseline import BaselineUnavailable, numpy_baseline
from tirgemm.tuning.measure.conditions import CACHE_VARIABLE, host_conditions, last_level_cache_bytes, timed_cache_bytes


class Clock:
    """Seconds that pass only when a block runs."""

    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self.seed = seed
        self.order: list[str] = []

    def block(self, name: str, seconds: float) -> list[float]:
        self.now += seconds
        self.order.append(name)
        return [seconds * 1e6]

    def run(self, enough: StoppingRule, **contenders: float) -> dict[str, list[float]]:
        blocks = {name: (lambda n=name, s=seconds: self.block(n, s)) for name, seconds in contenders.items()}
        return alternate(blocks, enough, lambda: None, seed=self.seed, clock=lambda: self.now)


def test_every_contender_has_a_turn_in_each_round_and_follows_each_other_about_as_often() -> None:
    clock = Clock()
    samples = clock.run(StoppingRule(1000, 0.0), a=1e-6, b=2e-6, c=3e-6)
    assert {name: len(taken) for name, taken in samples.items()} == {"a": 1000, "b": 1000, "c": 1000}
    rounds = [clock.order[at : at + 3] for at in range(0, 3000, 3)]
    assert all(set(turns) == {"a", "b", "c"} for turns in rounds)
    followed = Counter(pair for turns in rounds for pair in itertools.pairwise(turns))
    assert len(followed) == 6
    assert all(280 < count < 390 for count in followed.values()), "a third of the rounds each"


def test_the_order_of_turns_follows_from_the_seed() -> None:
    orders = []
    for seed in (3, 3, 4):
        clock = Clock(seed)
        clock.run(StoppingRule(8, 0.0), a=0.001, b=0.001, c=0.001)
        orders.append(clock.order)
    assert orders[0] == orders[1] != orders[2]


def test_a_budget_is_used_up_and_slow_kernels_get_fewer_samples() -> None:
    assert len(Clock().run(StoppingRule(5, 0.5), a=0.01)["a"]) == 50
    assert len(Clock().run(StoppingRule(50, 0.1), a=0.9)["a"]) == 3
    assert len(Clock().run(StoppingRule(50, 0.1), a=0.3)["a"]) == 7
    assert len(Clock().run(StoppingRule(2, 0.1), a=60.0)["a"]) == 2
    assert len(Clock().run(StoppingRule(5, 9.0), a=1e-6)["a"]) == MOST_SAMPLES


def test_contenders_take_turns_to_warm_up_until_the_time_is_over() -> None:
    clock, looks = Clock(), list[float]()
    blocks = [partial(clock.block, name, 0.25) for name in ("a", "b", "c")]
    warm_up(blocks, 1.1, lambda: looks.append(clock.now), clock=lambda: clock.now)
    assert clock.order == ["a", "b", "c", "a", "b"]
    assert looks == [0.25, 0.5, 0.75, 1.0, 1.25], "each is looked after"
    warm_up(blocks, 0.0, clock=lambda: clock.now)
    assert len(clock.order) == 5, "no time, no turn"


def test_swapping_gives_every_contender_the_next_ones_buffers() -> None:
    assert buffer_assignment(3, False) == [0, 1, 2]
    assert buffer_assignment(3, True) == [1, 2, 0]
    assert buffer_assignment(1, True) == [0]


@pytest.mark.timing
def test_a_turn_waits_for_spinning_threads_and_drops_its_first_call() -> None:
    stop = threading.Event()

    def spin() -> None:
        until = time.monotonic() + 0.08
        while time.monotonic() < until:
            pass
        stop.set()

    threading.Thread(target=spin).start()
    calls: list[str] = []

    def block() -> list[float]:
        assert stop.is_set()
        time.sleep(0.008)
        return [1.0]

    samples = turn(cycle([lambda: calls.append("warm")]), block)()
    assert calls == ["warm"]
    assert 1 < len(samples) < 6
    started = time.monotonic()
    settle()
    assert time.monotonic() - started < 0.2


def test_the_last_level_cache_is_read_from_linux_or_assumed(tmp_path: Path) -> None:
    assert last_level_cache_bytes(tmp_path) == 32 << 20
    for index, size in enumerate(("48K", "2048K", "105M")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert last_level_cache_bytes(tmp_path) == 105 << 20


def test_a_variable_says_how_large_a_cache_timing_assumes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, "24")
    assert timed_cache_bytes() == 24 << 20
    monkeypatch.setenv(CACHE_VARIABLE, "")
    assert timed_cache_bytes() == last_level_cache_bytes()
    for wrong in ("0", "16385", "-1", "32M", "1e3", "٣"):
        monkeypatch.setenv(CACHE_VARIABLE, wrong)
        with pytest.raises(
            InvalidRequest, match=f"{CACHE_VARIABLE} is '.*'; it must be a number of MiB from 1 to 16384"
        ):
            timed_cache_bytes()
        with pytest.raises(InvalidRequest, match=CACHE_VARIABLE):
            Measurer(detect("cpu"), Signer.generate().public)


def test_conditions_name_the_load_and_the_mean_clock(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\ncpu MHz\t\t: 2000.5\nprocessor\t: 1\ncpu MHz\t\t: 3000.5\n")
    actual = host_conditions(tmp_path)
    assert actual["clock_mhz"] == 2500
    assert {"at", "loadavg"} <= set(actual)
    assert actual["cpus"] == os.cpu_count()
    assert "clock_mhz" not in host_conditions(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "text",
    ["9x11x13:f16:nt", "9x11x13:f32:tn:alpha:beta:bias:act=silu", "9x11x13:f16:tt:batch=2:act=gelu_tanh:out=f32"],
)
def test_the_numpy_baseline_computes_the_problem(text: str) -> None:
    gemm = Gemm.parse(text)
    rng = np.random.default_rng(1)
    arrays = {}
    shapes = {tensor.name: tensor.shape for tensor in tensor_args(gemm)}
    for name in (*gemm.inputs, "d"):
        shape = [int(str(size)) for size in shapes[name]]
        dtype = gemm.dtype if name in "ab" else gemm.out
        arrays[name] = encode(rng.standard_normal(shape, dtype=np.float32), dtype)
    numpy_baseline(gemm)(**arrays)
    a, b = (decode(arrays[name], gemm.dtype) for name in "ab")
    x = (np.swapaxes(a, -1, -2) if gemm.trans_a else a) @ (np.swapaxes(b, -1, -2) if gemm.trans_b else b)
    for name in ("c", "bias"):
        x = x + (decode(arrays[name], gemm.out) if name in arrays else 0.0)
    assert np.allclose(decode(arrays["d"], gemm.out), activate(x, gemm.act), rtol=2e-3, atol=2e-3)


def test_the_numpy_baseline_says_what_it_cannot_run() -> None:
    with pytest.raises(BaselineUnavailable, match="bfloat16"):
        numpy_baseline(Gemm(3, 3, 3, "bf16"))
    with pytest.raises(BaselineUnavailable, match="erf"):
        numpy_baseline(Gemm(3, 3, 3, act="gelu"))


def test_the_gpus_session_imports_no_tvm_either() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; import tirgemm.tuning.measure.cuda_session;"
        "print([name for name in ('tvm', 'xgboost', 'sqlalchemy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
