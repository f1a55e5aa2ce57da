"""Race of whole models: our kernels in their linears against PyTorch, eagerly and in CUDA graphs.

    python benchmarks/models/race.py --device cuda:0 --out benchmarks/results/nvidia-h200/models.json

Hugging Face's decoders in real layer sizes with random weights, prompts of 1 to 2048 tokens. ``tirgemm`` has a kernel
for each number of tokens, ``tirgemm_set`` for each linear one that serves all of them; both are those of shipped
records, or defaults. ``tirgemm_pdl`` has those of ``tirgemm``, rebuilt and certified for programmatic dependent launch.
All of a variant are made first, side by side. A sample is one turn of calls divided by their number, from a
synchronised start to a synchronised end; ours and PyTorch's turns alternate. ``error`` is the distance of our result
from the one in fp32 (on a CPU in fp64), ``pytorch_error`` that of the worst of PyTorch's own ways of computing (cuBLAS,
cuBLASLt, without sums in fp16), of which two may lie twice as far apart, and ours no farther; ``difference`` is that of
ours from PyTorch's, ``pytorch_difference`` the largest between two of PyTorch's own ways, which rows of before do not
have. A machine without a GPU races tiny models, eagerly.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tirgemm
from benchmarks.models import agreement
from benchmarks.models.decoder import MOST_TOKENS, Decoder
from benchmarks.models.document import (
    ALL_KERNELS,
    IN_MODEL,
    KEY,
    RACED_KERNELS,
    SUITE,
    agrees,
    key_of,
    nearness,
    speedup,
    summary,
)
from benchmarks.models.hugging_face import SHAPES, TINY_SHAPES, hugging_face_decoder
from tirgemm.artifact import Kernel
from tirgemm.bench import results
from tirgemm.detect import device as detect_device
from tirgemm.device import Device
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm, Range
from tirgemm.hardware import dependent_launch_refusal
from tirgemm.kernel_source import Arrived, KernelSource, Policy, Preparation
from tirgemm.torch.alternation import Turns, alternating, captured, ended
from tirgemm.torch.conversion import accelerate
from tirgemm.torch.kernel_table import is_tuned, table_of
from tirgemm.torch.linear_problems import linears_of
from tirgemm.torch.problems import DTYPES
from tirgemm.tuning.measure.baselines.torch_baseline import pin
from tirgemm.tuning.process.locks import DeviceLock
from verification import command

ROOT = Path(__file__).resolve().parents[2]
EXACT, SET, DEPENDENT = "tirgemm", "tirgemm_set", "tirgemm_pdl"
EAGER, GRAPH = "eager", "graph"
# What is raced where nothing else is asked for.
ON_GPU: Mapping[str, Sequence[Any]] = {
    "models": [*SHAPES],
    "dtypes": ["f16"],
    "tokens": [1, 16, 128, 512, MOST_TOKENS],
    "modes": [EAGER, GRAPH],
    "variants": [EXACT, DEPENDENT, SET],
}
ON_CPU: Mapping[str, Sequence[Any]] = {
    "models": [*TINY_SHAPES],
    "dtypes": ["f32"],
    "tokens": [1, 5],
    "modes": [EAGER],
    "variants": [EXACT, SET],
}


@dataclass
class MadeKernels:
    """A KernelSource of the kernels that were made before the race, by problem, and of those that failed why."""

    tunes = False
    kernels: dict[Gemm, Kernel] = field(default_factory=dict)
    failures: dict[Gemm, str] = field(default_factory=dict)

    def lookup(self, gemm: Gemm, device: Device) -> Kernel | None:
        """The kernel of a problem."""
        del device
        return self.kernels.get(gemm)

    def refusal(self, gemm: Gemm, device: Device, policy: Policy) -> str | None:
        """Why there is none: nothing is made during the race."""
        del device, policy
        return self.failures.get(gemm, "it was not made before the race")

    def prepare(self, gemms: Sequence[Gemm], device: Device, policy: Policy, arrived: Arrived) -> Preparation:
        """Nothing, as all is refused."""
        del device, policy, arrived
        preparation = Preparation(tuple(gemms))
        preparation.finished.set()
        return preparation


@dataclass
class ModelRace:
    """What is raced: the decoders by name and dtype, on which device, and the options of the command line."""

    device: Device
    decoders: dict[tuple[str, str], Decoder]
    options: argparse.Namespace
    deadline: float | None
    made: dict[str, MadeKernels] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def rows_of(self, variant: str) -> list[int | Range]:
        """For how many rows the layers' linears want kernels."""
        tokens = self.options.tokens
        return [Range(1, max(tokens))] if variant == SET else list(tokens)

    def gemms(self, variant: str) -> list[Gemm]:
        """The problems of all decoders."""
        each = (
            gemm
            for decoder in self.decoders.values()
            for module, rows in ((decoder.layers, self.rows_of(variant)), (decoder.head, [1]))
            for linear in linears_of(module, rows)
            for gemm in linear.gemms
        )
        return list(dict.fromkeys(each))

    def make(self, source: KernelSource, variant: str) -> bool:
        """Make the kernels of all problems of a variant, side by side; whether there was the time."""
        if variant in self.made or self.over:
            return variant in self.made
        made, began = MadeKernels(), time.monotonic()
        if variant == DEPENDENT:
            if not self.make(source, EXACT):
                return False
            source = tirgemm.DependentKernels(self.made[EXACT], self.options.data)
        gemms = self.gemms(variant)
        print(f"{variant}: {len(gemms)} kernels are made", flush=True)

        def arrived(kernel: Kernel) -> None:
            made.kernels[kernel.gemm] = kernel
            print(f"{time.monotonic() - began:6.1f} s  {kernel!r}", flush=True)

        preparation = source.prepare(gemms, self.device, self.options.policy, arrived)
        done = preparation.wait(None if self.deadline is None else max(0.0, self.deadline - time.monotonic()))
        preparation.cancel()
        if not done:
            return False
        made.failures.update(preparation.failures)
        for gemm, why in made.failures.items():
            print(f"no kernel for {gemm}: {why}", flush=True)
        self.made[variant] = made
        return True

    @contextmanager
    def served(self, decoder: Decoder, variant: str, mode: str) -> Iterator[tuple[Decoder, dict[int, list[Kernel]]]]:
        """A twin of ``decoder`` whose linears run on the variant's kernels, and these by number of tokens; after the
        block no call has them. Where kernels are raced in the model, they are so in this ``mode``."""
        twin, made, table = decoder.twin(), self.made[variant], table_of(variant == DEPENDENT)
        measured = False if self.options.all_kernels else None
        reports = [
            accelerate(
                module,
                rows=rows,
                source=made,
                policy="tuned",
                measured=measured,
                dependent_launch=variant == DEPENDENT,
            )
            for module, rows in ((twin.layers, self.rows_of(variant)), (twin.head, [1]))
        ]
        if self.options.in_model:
            calls = [partial(_called, twin, decoder.prompts(tokens)) for tokens in self.options.tokens]
            for report in reports:
                report.race(calls, graph=mode == GRAPH)
        layers, head = (report.gemms for report in reports)
        for said in dict.fromkeys(str(each) for report in reports for each in report.linears):
            print(said, flush=True)
        of = {
            tokens: [*(gemm.with_(m=tokens) for gemm in layers if gemm.m_min <= tokens <= gemm.m_max), *head]
            for tokens in self.options.tokens
        }
        try:
            yield twin, {m: [*filter(None, (table.find(g, self.device) for g in gemms))] for m, gemms in of.items()}
        finally:
            for gemm in {*layers, *head} & made.kernels.keys():
                table.remove(made.kernels[gemm])

    def rows(self, variant: str, done: set[tuple[Any, ...]], about: dict[str, Any]) -> Iterator[results.Row]:
        """A row of every model, number of tokens and mode that is not ``done``, until the time is over."""
        for (name, dtype), decoder in self.decoders.items():
            keys = [key for key in self.keys(variant) if key[:2] == (name, dtype) and key not in done]
            if not keys or self.over:
                continue
            plain = decoder.twin()
            exact = decoder.cast(torch.float32 if self.device.kind == "cuda" else torch.float64)
            for of_mode in self._served_together(keys):
                with self.served(decoder, variant, of_mode[0][3]) as (twin, kernels):
                    for key in of_mode:
                        if not self.over:
                            row = dict(zip(KEY, key, strict=True))
                            yield row | self._measured(plain, twin, exact, key) | _origin(about, kernels[key[2]])

    def _served_together(self, keys: list[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
        """``keys`` in groups of one choice of kernels: where they are raced in the model, those of a mode."""
        if not self.options.in_model:
            return [keys]
        groups = ([key for key in keys if key[3] == mode] for mode in self.options.modes)
        return [group for group in groups if group]

    def keys(self, variant: str) -> list[tuple[Any, ...]]:
        """What rows there are to be of a variant."""
        options = self.options
        places = ((tokens, mode) for tokens in options.tokens for mode in options.modes)
        return [(*which, *place, variant) for which, place in itertools.product(self.decoders, places)]

    def _measured(self, decoder: Decoder, twin: Decoder, exact: Decoder, key: tuple[Any, ...]) -> results.Row:
        """The times and the agreement of one row."""
        _, _, tokens, mode, _ = key
        x = decoder.prompts(tokens)
        contenders: dict[str, Callable[[], Any]] = {"ours": lambda: twin(x), "pytorch": lambda: decoder(x)}
        reference = exact(x)
        error, apart = agreement.agreement_of_pytorch(contenders["pytorch"], reference, self.device.kind)
        outputs = {name: call() for name, call in contenders.items()}
        if mode == GRAPH:
            graphs = {name: captured(call) for name, call in contenders.items()}
            contenders = {name: graph.replay for name, (graph, _) in graphs.items()}
            outputs = {name: output for name, (_, output) in graphs.items()}
        synchronise = torch.cuda.synchronize if self.device.kind == "cuda" else ended
        with DeviceLock(self.device.lock_key, self.options.lock_dir):
            samples = alternating(contenders, Turns(self.options.turns, self.options.turn_seconds), synchronise)
        return {
            "samples_ms": results.rounded(samples["ours"]),
            "pytorch_samples_ms": results.rounded(samples["pytorch"]),
            "error": agreement.distance(outputs["ours"], reference),
            "pytorch_error": error,
            "difference": agreement.distance(outputs["ours"], outputs["pytorch"]),
            "pytorch_difference": apart,
        }


def main(
    arguments: list[str],
    source: KernelSource | None = None,
    make: Callable[[str, str, torch.dtype], Decoder] = hugging_face_decoder,
) -> int:
    """The command line. ``source``: where kernels come from, by default the data folder. ``make`` makes the decoder
    of a name on a device, in a dtype."""
    options = _parser().parse_args(arguments)
    device = detect_device(options.device)
    if not device.present:
        raise InvalidRequest(f"device {options.device} is only named; models run on a device that is here")
    refusal = dependent_launch_refusal(device)
    for name, usual in (ON_GPU if device.kind == "cuda" else ON_CPU).items():
        setattr(options, name, getattr(options, name) or [each for each in usual if each != DEPENDENT or not refusal])
    if not 1 <= min(options.tokens) <= max(options.tokens) <= MOST_TOKENS:
        raise InvalidRequest(f"tokens are {options.tokens}; they must be from 1 to {MOST_TOKENS}")
    if GRAPH in options.modes and device.kind != "cuda":
        raise InvalidRequest("mode graph needs a GPU: CUDA graphs are captured there")
    if DEPENDENT in options.variants and refusal:
        raise InvalidRequest(f"variant {DEPENDENT}: {refusal}")
    if options.all_kernels and options.in_model:
        raise InvalidRequest("--all-kernels uses what --in-model would leave to PyTorch; give one of them")
    about = results.environment(device, ROOT, options.commit) | {
        "transformers": results.version_of("transformers"),
        "kernels": _kernels(options, device),
    }
    document = _document(options, about)
    deadline = time.monotonic() + options.limit if options.limit is not None else None
    # torch.cuda.synchronize and the capture of graphs use the current device.
    current = torch.cuda.device(device.name) if device.kind == "cuda" else nullcontext()
    with torch.no_grad(), current:
        pin(torch)
        decoders = {
            (name, dtype): make(name, device.name, DTYPES[dtype]) for name in options.models for dtype in options.dtypes
        }
        race = ModelRace(device, decoders, options, deadline)
        done = {key_of(row) for row in document["rows"]}
        keys = {variant: race.keys(variant) for variant in options.variants}
        kernels = source or tirgemm.LocalKernels(options.data)
        for variant in options.variants:
            if all(key in done for key in keys[variant]) or not race.make(kernels, variant):
                continue
            for row in race.rows(variant, done, about):
                document["rows"].append(row)
                document["summary"] = summary(document["rows"])
                results.write(options.out, document)
                done.add(key_of(row))
                print(", ".join(map(str, key_of(row))), f"{speedup(row):.3f} x PyTorch", flush=True)
    for name, each in document["summary"].items():
        print(f"{name}: geomean {each['geomean']:.3f}, worst {each['min']:.3f}, {each['count']} rows")
    if near := nearness(document["rows"]):
        print(near)
    wrong = [row for row in document["rows"] if not agrees(row)]
    for row in wrong:
        print(f"{key_of(row)}: error {row['error']:.3g}, that of PyTorch's own ways up to {row['pytorch_error']:.3g}")
    left = [key for of_variant in keys.values() for key in of_variant if key not in done]
    if left:
        print(f"{len(left)} rows are left: run it again with --resume")
    return 1 if left or wrong else 0


def _called(decoder: Decoder, x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = decoder(x)
    return result


def _kernels(options: argparse.Namespace, device: Device) -> str:
    """Which of the kernels that were made the models run on."""
    if options.in_model:
        return IN_MODEL
    return ALL_KERNELS if options.all_kernels or device.kind != "cuda" else RACED_KERNELS


def _origin(about: Mapping[str, Any], kernels: Sequence[Kernel]) -> results.Row:
    """Where a row comes from: its kernels by what they were selected as, and one hash of all their sources."""
    digests = sorted(digest for kernel in kernels for digest in _sources(kernel))
    roles = Counter("tuned" if is_tuned(kernel) else "default" for kernel in kernels)
    sha256 = hashlib.sha256("".join(digests).encode()).hexdigest()
    return {"kernels": dict(roles)} | results.measured_at(about, sha256)


def _sources(kernel: Kernel) -> list[str]:
    return [digest for member in kernel.manifest.kernels for digest in member.sources.values()]


def _document(options: argparse.Namespace, about: dict[str, Any]) -> results.Document:
    """The results file, with the rows that it has where they are kept. Raises InvalidRequest."""
    document: results.Document = {"format": 1, "suite": SUITE, "regime": "models", "environment": about, "rows": []}
    if options.resume and options.out.exists():
        document["rows"] = results.resumed(options.out, document)["rows"]
    return document | {"summary": summary(document["rows"])}


def _parser() -> argparse.ArgumentParser:
    made = command.parser(__doc__, "--device", "--resume", "--data", "--lock-dir", "--commit", "--out", "--limit")
    made.add_argument("--models", nargs="+", choices=[*SHAPES, *TINY_SHAPES], help="on a GPU the large, else the tiny")
    made.add_argument("--dtypes", nargs="+", choices=[*DTYPES], help="on a GPU f16, else f32")
    made.add_argument("--tokens", nargs="+", type=int, help="of the prompts")
    made.add_argument("--modes", nargs="+", choices=(EAGER, GRAPH), help="on a GPU both, else eager")
    made.add_argument("--variants", nargs="+", choices=(EXACT, DEPENDENT, SET), help="on a GPU all")
    made.add_argument("--policy", choices=("tuned", "shipped", "default"), default="default", help="what may be made")
    made.add_argument("--all-kernels", action="store_true", help="use kernels too that accelerate finds slower")
    made.add_argument("--in-model", action="store_true", help="race the kernels in the model itself too")
    made.add_argument("--turns", type=int, default=30, help="samples of a row")
    made.add_argument("--turn-seconds", type=float, default=0.008, help="about how long a sample takes")
    return made


if __name__ == "__main__":
    sys.exit(command.run(lambda: main(sys.argv[1:])))
