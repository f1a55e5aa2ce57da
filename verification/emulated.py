"""The mutants of ``mutants.py`` on the CPU emulator, where threads run in any order and copies land late.

    python -m verification.emulated simt --seconds 600 --out benchmarks/results/cpu/simt.emulated.json.gz

The kernels, mutants and keys are those of mutants.py. A kernel's CUDA source is compiled once with all its mutants in
it, for a problem with the same config, layout, epilogue and alignment, but fewer tiles and steps: the row names it. As
it is, a kernel must give the right D, and the same bits in every order; a mutant is wrong where any bit differs in any
order. For ``wgmma``, whose kernels run on a model of sm_90a of few SMs, also where it does what PTX leaves undefined.
Each kernel runs in a process of its own. Started again it goes on where it stopped. The exit code is 1 where an
unaltered kernel failed or a mutant was not reached; a mutant that is not caught is a row, not a failure.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import InvalidConfig, TirgemmError
from tirgemm.families import family_named
from tirgemm.families.base import Program
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.launch import Launch
from verification import alterations, command
from verification.altered import lowered
from verification.cases import Case
from verification.emulator import cuda_emulator, operands, wgmma_on_cpu, wmma_on_cpu
from verification.evidence import EvidenceFile, Row
from verification.mutants import NOT_CAUGHT, PASSED, UNALTERED, MutantRun, all_jobs, ended
from verification.smaller import smaller
from verification.switched import NUMBER, switched

ARCH = "sm_90a"
WRONG, HANG, CRASH, NOT_EMULATED = "emulator: wrong", "emulator: hang", "emulator: crash", "not emulated"
# Even orders let copies land as late as they may, odd ones at once; 0 and 1 are by number and from the last, others
# random; from 16 on a warp runs on alone.
ORDERS = (0, 1, 2, 3, 6, 7, 16, 17, 18, 19)
_SEED = 17
# So few that a block computes several tiles, and that with stream-K several blocks share one.
WGMMA_SMS = 2
# A kernel as it is, compilation included; then a mutant takes no longer than so many times that, and some seconds.
_FIRST_S, _TIMES, _MORE_S = 300.0, 3.0, 20.0

# D of a call, as (batch, m, n) float64, with the threads in the order of a number.
EmulatedCall = Callable[[operands.KernelCall, int], "np.ndarray"]


@dataclass(frozen=True)
class Emulator:
    """What emulates a family.

    ``program`` makes a config's program without the rules, which mind that small problems keep few SMs busy;
    ``kernels`` compiles a source in a folder as ``kernel.so``, and raises AssertionError where it does not take it;
    ``hangs`` are the errors that mean that threads wait for what does not come; ``orders`` the numbers to run; ``call``
    makes operands of which D has the same bits however the kernel may order its sums; ``more`` is what a row also says.
    """

    program: Callable[[Gemm, Case], Program]
    kernels: Callable[[str, Launch, Path], EmulatedCall]
    hangs: tuple[type[Exception], ...] = (cuda_emulator.Diverged,)
    orders: tuple[int, ...] = ORDERS
    call: Callable[[Gemm, int, int], operands.KernelCall] = operands.KernelCall.random
    more: tuple[tuple[str, int], ...] = ()


def main() -> int:
    options = _options()
    family, emulated_as = family_named(options.family), named_device(ARCH)
    jobs = list(all_jobs(family, emulated_as, options.kernels))
    evidence = EvidenceFile(options.out, "emulated", family.name, detect_device("cpu"), commit=options.commit)
    todo: dict[Case, list[MutantRun]] = {}
    for job in jobs:
        if job.key not in evidence.rows:
            todo.setdefault(job.case, []).append(job)
    print(f"{len(jobs)} mutants and kernels; {sum(map(len, todo.values()))} of {len(todo)} kernels to go", flush=True)
    deadline = time.monotonic() + options.seconds
    lowering = threading.Lock()
    with ThreadPoolExecutor(options.processes or os.cpu_count()) as pool:
        waiting = [pool.submit(kernel_rows, case, left, emulated_as, lowering, deadline) for case, left in todo.items()]
        for future in as_completed(waiting):
            for job, row in future.result().items():
                evidence.add(job.key, job.row | row)
            evidence.save()
            print(f"{len(evidence.rows)} rows", flush=True)
    return ended(evidence, jobs, failures(list(evidence.rows.values())))


def failures(rows: list[Row]) -> list[str]:
    """Keys of kernels that are wrong as they are."""
    return [row["key"] for row in rows if not row["mutant"] and row["status"] in (WRONG, HANG, CRASH)]


def kernel_rows(
    case: Case, jobs: Sequence[MutantRun], device: Device, lowering: threading.Lock, deadline: float
) -> dict[MutantRun, Row]:
    """Rows of the mutants of one kernel, and of the kernel, as far as there is time. TVM runs under ``lowering``."""
    if time.monotonic() > deadline:
        return {}
    emulator = EMULATORS[case.config.family]
    with lowering:
        smaller = smaller_source(emulator, case, device)
    if isinstance(smaller, str):
        return {job: {"status": f"{NOT_EMULATED}: {smaller}", "source_sha256": None} for job in jobs}
    gemm, launch, source, alteration_of = smaller
    mutants = [job for job in jobs if job.mutant != UNALTERED]
    own_source = sha256(source.encode()).hexdigest()
    text = switched(source, [alteration_of[job.mutant.alteration] for job in mutants])
    rows: dict[MutantRun, Row] = {}
    own = [job for job in jobs if job.mutant == UNALTERED]
    with tempfile.TemporaryDirectory(prefix="tirgemm-emulated-") as folder:
        left, number = True, 1
        while left and time.monotonic() < deadline:
            left = False
            for got, word, message in _results(
                case.config.family, text, launch, gemm, Path(folder), number, len(mutants), deadline
            ):
                row: Row = {"status": word, "emulated": str(gemm), "source_sha256": own_source, **dict(emulator.more)}
                row |= {"message": message} if message else {}
                if got == 0 and word == NOT_CAUGHT:
                    rows |= {job: row | {"status": PASSED} for job in own}
                    continue
                if got == 0:
                    # Of a kernel that is wrong as it is, no mutant says anything.
                    return rows | dict.fromkeys(jobs if word.startswith(NOT_EMULATED) else own, row)
                rows[mutants[got - 1]] = row
                # What broke or stopped its process: another one goes on behind it.
                left, number = word in (CRASH, HANG) and got < len(mutants), got + 1
    return rows


def smaller_source(emulator: Emulator, case: Case, device: Device) -> tuple[Gemm, Launch, str, dict[str, str]] | str:
    """A smaller problem with the same mutants in the same order, its launch and source, and the names of its mutants.

    Where there is none, why. Needs TVM.
    """
    from tirgemm.tuning.build.cuda import checked_launch, lower

    wanted = alterations.mutants(lowered(case.gemm, case.config, device.device_class)[1])
    why = "the sites of every smaller problem are others"
    for gemm in smaller(case, device):
        try:
            program = emulator.program(gemm, case)
            host, source = lower(program, device.arch)
            launch = checked_launch(program, host)
        except TirgemmError as error:
            why = str(error)[:200]
            continue
        mutants = alterations.mutants(source)
        if [(m.what, m.where) for m in mutants] == [(m.what, m.where) for m in wanted]:
            names = {w.alteration: f.alteration for w, f in zip(wanted, mutants, strict=True)}
            return gemm, launch, source, names
    return why


def _results(
    family: str, source: str, launch: Launch, gemm: Gemm, folder: Path, first: int, last: int, deadline: float
) -> Iterator[tuple[int, str, str]]:
    """What a process of its own says about the kernel as it is, 0, and mutants ``first`` to ``last``; ends behind a
    hang or crash."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(family, source, launch, gemm, folder, first, last, there), daemon=True)
    process.start()
    there.close()
    limit, number = _FIRST_S, 0
    try:
        while number <= last:
            start = time.monotonic()
            if not here.poll(min(limit, max(0.0, deadline - start))):
                if time.monotonic() < deadline:
                    yield number, HANG, f"no end in {limit:.0f} s"
                return
            try:
                number, word, message, seconds = here.recv()
            except EOFError:
                process.join()
                yield number, CRASH, f"exit code {process.exitcode}"
                return
            yield number, word, message
            if number == 0:
                if word != NOT_CAUGHT:
                    return
                limit = _TIMES * seconds + _MORE_S
            number = first if number == 0 else number + 1
    finally:
        process.kill()
        process.join()
        here.close()


def _run(
    family: str, source: str, launch: Launch, gemm: Gemm, folder: Path, first: int, last: int, said: Connection
) -> None:
    """Compile, and say of the kernel and of each mutant what any order of threads shows; the seconds of a run last."""
    emulator = EMULATORS[family]
    call = emulator.call(gemm, gemm.m_max, _SEED)
    try:
        kernels = emulator.kernels(source, launch, folder)
    except AssertionError as error:
        said.send((0, f"{NOT_EMULATED}: the emulator does not take the source", str(error)[:300], 0.0))
        return
    number = ctypes.c_int.in_dll(ctypes.CDLL(str(folder / "kernel.so")), NUMBER)
    right: np.ndarray | None = None
    for at in (0, *range(first, last + 1)):
        number.value = at
        start = time.monotonic()
        word, message = NOT_CAUGHT, ""
        for order in emulator.orders:
            try:
                d = kernels(call, order)
                if right is None:
                    call.check(d)
                    right = d
                differing = int((~((d == right) | (np.isnan(d) & np.isnan(right)))).sum())
                assert not differing, f"{differing} of {d.size} elements differ"
            except emulator.hangs as error:
                word, message = HANG, f"order {order}: {error}"[:200]
            except AssertionError as error:
                word, message = WRONG, f"order {order}: {error}"[:200]
            if word != NOT_CAUGHT:
                break
        said.send((at, word, message, time.monotonic() - start))
        if at == 0 and word != NOT_CAUGHT:
            return


def _blocked(source: str, launch: Launch, folder: Path) -> EmulatedCall:
    compiled = cuda_emulator.compile_source(source, launch, folder)
    return lambda call, order: cuda_emulator.run(compiled, call, order)


def _with_fragments(source: str, launch: Launch, folder: Path) -> EmulatedCall:
    return _blocked(*wmma_on_cpu.emulated(source, launch), folder)


def _simt(gemm: Gemm, case: Case) -> Program:
    from tirgemm.families.simt.program import program
    from tirgemm.families.simt.tiling import tiling

    return program(gemm, tiling(gemm, case.config))


def _mma(gemm: Gemm, case: Case) -> Program:
    from tirgemm.families.mma.program import program
    from tirgemm.families.mma.space import tiling

    return program(tiling(gemm, case.config), case.config["registers"])


def _wmma(gemm: Gemm, case: Case) -> Program:
    from tirgemm.families.wmma.program import program
    from tirgemm.families.wmma.space import tiling

    return program(tiling(gemm, case.config))


def _wgmma(gemm: Gemm, case: Case) -> Program:
    from tirgemm.families.wgmma.planning.plan import plan
    from tirgemm.families.wgmma.program import program

    cut = plan(gemm, case.config, WGMMA_SMS)
    if (cut.split - 1) * cut.grid.split_steps >= cut.grid.steps:
        raise InvalidConfig(f"{gemm}: of {cut.split} parts of {cut.grid.steps} steps of k one is empty")
    return program(cut)


# By name: an emulator is made for the instructions and the synchronisation of a family's kernels, and only here are
# programs made of configs that the rules or the space of a small problem refuse, which the contract therefore lacks.
EMULATORS: dict[str, Emulator] = {
    "simt": Emulator(_simt, _blocked),
    "mma": Emulator(_mma, _blocked),
    "wmma": Emulator(_wmma, _with_fragments),
    "wgmma": Emulator(
        _wgmma,
        wgmma_on_cpu.Kernels,
        (wgmma_on_cpu.Stuck,),
        tuple(range(24)),
        operands.KernelCall.integers,
        (("sms", WGMMA_SMS),),
    ),
}


def _options() -> argparse.Namespace:
    made = command.parser((__doc__ or "").splitlines()[0], "--commit", "--out")
    made.add_argument("family", choices=sorted(EMULATORS))
    made.add_argument("--seconds", type=float, default=600.0, help="stop after so many")
    made.add_argument("--processes", type=int, default=None, help="kernels at a time (default: one a hardware thread)")
    made.add_argument("--kernels", type=int, default=None, help="only the first so many kernels")
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
