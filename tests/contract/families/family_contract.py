"""Contract of every kernel family. Its test file inherits ``FamilyContract`` and says how to run a program."""

from __future__ import annotations

import math
import random
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import ClassVar

import pytest

from tests.contract.families import cpu_runner
from tests.helpers.pace import REFERENCE_S, reference_work
from tirgemm.config import Config, Value
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig
from tirgemm.families.base import (
    Family,
    Program,
    WithDerivedKnobs,
    WithLoadWaits,
    WithOutputTile,
    WithSharedTile,
    rejected,
)
from tirgemm.gemm import REGIMES, Gemm, Regime
from tirgemm.launch import Launch, Pointer, Scalar, Size, TensorMap, scalar_args, tensor_args
from tirgemm.tuning.build.binary import Binary
from verification.emulator.operands import KernelCall

# Draws per choice before a knob's choice counts as never valid.
_DRAWS = 4000
_SIZES = (
    1,
    2,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    33,
    40,
    63,
    64,
    65,
    72,
    96,
    127,
    129,
    136,
    255,
    257,
    300,
    511,
    513,
    1024,
    4096,
    5000,
)


@lru_cache(maxsize=32)
def _instantiated(family: Family, gemm: Gemm, config: Config, device: Device) -> Program:
    return family.instantiate(gemm, config, device)


class FamilyContract:
    """Inherit as ``class TestX(FamilyContract)`` and set the class attributes; a family that runs here,
    ComputedContract."""

    family: ClassVar[Family]
    device: ClassVar[Device]
    other_device: ClassVar[Device]
    """A device of a kind that the family does not write for."""
    gemms: ClassVar[tuple[str, ...]]
    """Problems for the checks of the space: sizes of every order of magnitude."""
    small_gemms: ClassVar[tuple[str, ...]]
    """Problems to run: odd sizes, all layouts, epilogues, gaps, batches, ranges."""
    growing_gemms: ClassVar[tuple[str, str]] = ("65x63x67:f16:nt", "1025x1023x1027:f16:nt")
    """A small problem and a large one."""
    default_limit_s: ClassVar[float] = 1e-3
    """Seconds that choosing a default may take."""
    random_configs: ClassVar[int] = 2
    """Random configs run per small problem, besides the default."""

    def forget(self) -> None:
        """Empty what the family keeps of defaults that it has chosen."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """One test per small problem, so that a failure names its problem."""
        if "small_gemm" in metafunc.fixturenames:
            metafunc.parametrize("small_gemm", self.small_gemms)

    # -- helpers -------------------------------------------------------------------------------

    def default(self, gemm: Gemm, regime: Regime = "sustained") -> Config:
        return self.family.default(gemm, self.device, regime)

    def program(self, gemm: Gemm, config: Config) -> Program:
        """The program of ``config``, made once for the tests that follow one another."""
        return _instantiated(self.family, gemm, config, self.device)

    def draw(
        self, gemm: Gemm, rng: random.Random, valid: bool = True, draws: int = _DRAWS, **fixed: Value
    ) -> Config | None:
        """A random config that the rules accept (or reject), with some knobs fixed; None if none was found."""
        space = self.family.space(gemm, self.device)
        for _ in range(draws):
            config = space.at(rng.randrange(space.size)).with_(**fixed)
            if (rejected(self.family, gemm, config, self.device) is None) is valid:
                return config
        return None

    def parsed(self) -> list[Gemm]:
        return [Gemm.parse(text) for text in dict.fromkeys((*self.gemms, *self.small_gemms))]

    # -- space, rules, default -----------------------------------------------------------------

    def test_supports_the_contract_problems_and_says_why_not_elsewhere(self) -> None:
        for gemm in self.parsed():
            assert self.family.supports(gemm, self.device) is None
            reason = self.family.supports(gemm, self.other_device)
            assert isinstance(reason, str)
            assert len(reason) > 10

    def test_what_it_may_say_beside_the_contract_makes_sense_for_every_config_that_passes_the_rules(self) -> None:
        rng = random.Random(11)
        for gemm in self.parsed():
            config = self.draw(gemm, rng) or self.default(gemm)
            if isinstance(self.family, WithOutputTile):
                tile = self.family.output_tile(gemm, config, self.device, gemm.m_max)
                assert min(tile.m, tile.n, tile.k) > 0
                covering = -(-gemm.m_max // tile.m) * -(-gemm.n // tile.n) * gemm.batch
                assert tile.tiles is None or tile.tiles >= covering
            if isinstance(self.family, WithSharedTile) and (
                shared := self.family.shared_tile(gemm, config, self.device)
            ):
                assert shared.period >= shared.layout.nbytes
            if isinstance(self.family, WithLoadWaits):
                for regime in REGIMES:
                    waits = self.family.load_waits(gemm, config, self.device, regime)
                    assert min(waits.launch_us, waits.load_us, waits.ahead, waits.steps) > 0
                    floor = waits.launch_us + waits.steps * waits.load_us / waits.ahead
                    assert floor <= 1.001 * self.family.predict_us(gemm, config, self.device, regime)
            if isinstance(self.family, WithDerivedKnobs):
                derived = self.family.derived_knobs(config)
                assert derived
                assert not derived.keys() & dict(config.knobs).keys()
                assert all(type(value) is int and value > 0 for value in derived.values())

    @pytest.mark.parametrize("regime", REGIMES)
    def test_default_is_in_the_space_and_passes_every_rule(self, regime: Regime) -> None:
        for gemm in self.parsed():
            config = self.default(gemm, regime)
            self.family.space(gemm, self.device).check(config)
            assert rejected(self.family, gemm, config, self.device) is None, f"{gemm}: {config}"

    def test_defaults_of_sizes_around_every_tile_are_in_the_space_and_pass_every_rule(self) -> None:
        rng = random.Random(7)
        dtypes = sorted({gemm.dtype for gemm in self.parsed()})
        for _ in range(300):
            m, n, k = (rng.choice(_SIZES) for _ in range(3))
            layout, batch = rng.choice(("nn", "nt", "tn", "tt")), rng.choice((1, 1, 3))
            gemm = Gemm.parse(f"{m}x{n}x{k}:{rng.choice(dtypes)}:{layout}:batch={batch}")
            if self.family.supports(gemm, self.device) is None:
                config = self.default(gemm, rng.choice(REGIMES))
                self.family.space(gemm, self.device).check(config)
                assert rejected(self.family, gemm, config, self.device) is None, f"{gemm}: {config}"

    @pytest.mark.timing
    def test_default_is_pure_and_takes_little_time(self) -> None:
        for gemm in self.parsed():
            configs, taken, work, took = set(), list[float](), list[float](), math.inf
            # The best of twenty tries tells a slow default from slow moments; most need no more than three.
            while len(taken) < 3 or (took >= self.default_limit_s and len(taken) < 20):
                self.forget()
                began = time.process_time()
                configs.add(self.default(gemm))
                taken.append(time.process_time() - began)
                work.append(reference_work())
                # Seconds of the reference's processor: those of this one are worth less, more so while its other thread
                # works.
                took = min(taken) / max(1.0, min(work) / REFERENCE_S)
            assert len(configs) == 1
            assert took < self.default_limit_s, f"default of {gemm} took {took * 1e3:.2f} ms"

    def test_choosing_a_default_does_not_import_tvm(self) -> None:
        code = (
            f"import sys; from {type(self.family).__module__} import {type(self.family).__name__} as Family\n"
            "from tirgemm.gemm import Gemm; from tirgemm.device import Device\n"
            f"family = Family(); gemm = Gemm.parse({self.gemms[0]!r})\n"
            f"device = Device.from_json({self.device.to_json()!r})\n"
            "config = family.default(gemm, device, 'sustained'); family.predict_us(gemm, config, device, 'sustained')\n"
            "family.space(gemm, device).check(config); [rule.check(gemm, config, device) for rule in family.rules]\n"
            "sys.exit('tvm' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_predicted_times_are_positive_and_grow_with_the_problem(self) -> None:
        for regime in REGIMES:
            times = []
            for text in self.growing_gemms:
                gemm = Gemm.parse(text)
                times.append(self.family.predict_us(gemm, self.default(gemm, regime), self.device, regime))
            assert 0 < times[0] < times[1] < math.inf

    def test_every_choice_of_every_knob_occurs_in_a_valid_config(self) -> None:
        spaces = {gemm: self.family.space(gemm, self.device) for gemm in self.parsed()}
        missing: dict[tuple[str, Value], list[Gemm]] = {}
        for gemm, space in spaces.items():
            for knob in space.knobs:
                for choice in knob.choices:
                    missing.setdefault((knob.name, choice), []).append(gemm)
        # Beside a default most choices are valid, of the others most soon in draws of some problem: so all in turn.
        defaults = {gemm: self.default(gemm) for gemm in spaces}
        for knob_name, choice in list(missing):
            for gemm in missing[knob_name, choice]:
                near = defaults[gemm].with_(**{knob_name: choice})
                if rejected(self.family, gemm, near, self.device) is None:
                    del missing[knob_name, choice]
                    break
        for draws in (_DRAWS // 40, _DRAWS):
            for number, gemm in enumerate(spaces):
                rng = random.Random(number)
                for (knob_name, choice), gemms in list(missing.items()):
                    if gemm in gemms and self.draw(gemm, rng, True, draws, **{knob_name: choice}) is not None:
                        del missing[knob_name, choice]
        assert not missing, f"never valid: {sorted(missing, key=repr)}"

    def test_every_knob_says_what_it_sets(self) -> None:
        for gemm in self.parsed():
            meanings = {knob.name: knob.meaning for knob in self.family.space(gemm, self.device).knobs}
            assert all(meanings.values()), f"without a meaning: {[name for name, said in meanings.items() if not said]}"

    def test_rules_have_names_of_their_own_and_give_sentences(self) -> None:
        names = [rule.name for rule in self.family.rules]
        assert len(set(names)) == len(names)
        rng = random.Random(0)
        seen = set()
        for gemm in self.parsed():
            space = self.family.space(gemm, self.device)
            for _ in range(300):
                refusal = rejected(self.family, gemm, space.at(rng.randrange(space.size)), self.device)
                if refusal is not None:
                    seen.add(refusal[0])
                    assert len(refusal[1].split()) >= 5, f"rule {refusal[0]} says only {refusal[1]!r}"
        assert seen <= set(names)

    def test_configs_round_trip_through_json_and_indices(self) -> None:
        rng = random.Random(1)
        for gemm in self.parsed():
            space = self.family.space(gemm, self.device)
            for config in (self.default(gemm), space.at(rng.randrange(space.size))):
                assert Config.from_json(config.to_json()) == config
                assert space.config(space.indices(config)) == config

    # -- programs ------------------------------------------------------------------------------

    def test_instantiate_rejects_a_value_outside_the_space_by_its_knob(self) -> None:
        gemm = Gemm.parse(self.small_gemms[0])
        config = self.default(gemm)
        knob = config.knobs[0][0]
        with pytest.raises(InvalidConfig, match=knob):
            self.family.instantiate(gemm, config.with_(**{knob: -7}), self.device)
        with pytest.raises(InvalidConfig, match="knob"):
            self.family.instantiate(gemm, Config(config.family, config.knobs[1:]), self.device)

    def test_instantiate_rejects_what_a_rule_rejects_by_the_rules_name(self) -> None:
        rng = random.Random(2)
        for gemm in self.parsed():
            config = self.draw(gemm, rng, valid=False)
            if config is None:
                continue
            refusal = rejected(self.family, gemm, config, self.device)
            assert refusal is not None
            with pytest.raises(InvalidConfig, match=refusal[0]):
                self.family.instantiate(gemm, config, self.device)

    def test_launch_takes_the_tensors_of_the_problem_and_round_trips(self) -> None:
        for text in self.small_gemms:
            gemm = Gemm.parse(text)
            launch = self.program(gemm, self.default(gemm)).launch
            assert launch.tensors == tensor_args(gemm)
            assert launch.scalars == scalar_args(gemm)
            assert Launch.from_json(launch.to_json()) == launch

    def test_primfuncs_match_the_launch(self) -> None:
        for text in self.small_gemms:
            gemm = Gemm.parse(text)
            self.check_symbols(self.program(gemm, self.default(gemm)))

    def check_symbols(self, program: Program) -> None:
        """Every kernel of the launch is a PrimFunc of that symbol with those parameters, and no other exists."""
        from tvm.tirx.buffer import is_buffer_var

        functions = {str(func.attrs["global_symbol"]): func for func in program.mod.functions.values()}
        launch = program.launch
        assert set(functions) == {kernel.symbol for kernel in launch.kernels}
        memory = {t.name for t in launch.tensors} | {w.name for w in launch.workspaces}
        for kernel in launch.kernels:
            params = list(functions[kernel.symbol].params)
            if self.device.kind == "cpu":
                assert str(params.pop().ty.dtype) == "int32", "the block index comes last"
            assert len(params) == len(kernel.params)
            for var, param in zip(params, kernel.params, strict=True):
                if isinstance(param, Pointer):
                    assert param.name in memory
                    assert is_buffer_var(var) or "Pointer" in type(var.ty).__name__
                elif isinstance(param, Scalar):
                    assert param.name in {s.name for s in launch.scalars}
                    assert str(var.ty.dtype) == "float32"
                elif isinstance(param, Size):
                    assert str(var.ty.dtype) == {"i32": "int32", "i64": "int64"}[param.dtype]
                else:
                    assert isinstance(param, TensorMap)

    def test_the_same_config_gives_the_same_source_twice(self) -> None:
        rng = random.Random(3)
        for text in self.small_gemms[:2]:
            gemm = Gemm.parse(text)
            for config in (self.default(gemm), self.draw(gemm, rng)):
                assert config is not None
                first, second = (self.source(self.family.instantiate(gemm, config, self.device)) for _ in range(2))
                assert first == second

    def source(self, program: Program) -> str:
        """What must be the same for the same config: the script, or a compiled source's hash."""
        return str(program.mod.script())


class ComputedContract(FamilyContract, ABC):
    """The contract of a family whose kernels run on this machine: define ``binary``."""

    @abstractmethod
    def binary(self, program: Program) -> Binary:
        """``program``, or what means the same, compiled for this machine."""

    def test_default_and_random_configs_compute_the_problem(self, small_gemm: str) -> None:
        gemm = Gemm.parse(small_gemm)
        rng = random.Random(str(gemm))
        configs = [self.default(gemm), *(self.draw(gemm, rng) for _ in range(self.random_configs))]
        for number, config in enumerate(configs):
            assert config is not None
            binary = self.binary(self.program(gemm, config))
            for m in sorted({gemm.m_min, gemm.m_max}):
                case = KernelCall.random(gemm, m, seed=number)
                try:
                    case.check(cpu_runner.call(binary, case))
                except AssertionError as error:
                    raise AssertionError(f"{config} at m = {m}: {error}") from error
