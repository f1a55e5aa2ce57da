"""``tirgemm explain``: why a kernel is as fast as it is, and why the others lost, on a machine with or without a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.tune import Data, Url
from service.data_dir import SIGNING_KEY, database_file, open_store
from tirgemm import _console as console
from tirgemm._console import Json
from tirgemm.cli import Regime
from tirgemm.errors import InvalidRequest

if TYPE_CHECKING:
    from service.explain.gather import Report
    from tirgemm.analysis.roofline import MeasuredRate
    from tirgemm.tuning.explain import Time


def explain(
    gemm: Annotated[
        str | None, typer.Argument(metavar="GEMM", help="The problem, such as 4096x4096x4096:f16:nt.")
    ] = None,
    kernel: Annotated[str | None, typer.Option(metavar="ID", help="A kernel of the data folder, by its id.")] = None,
    family: Annotated[
        str | None, typer.Option(help="Whose kernel; default: the family that is predicted to be fastest.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="KNOB=VALUE,...", help="Knobs that differ from the family's default.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda, cuda:1, or by name: sm_80, sm_86, sm_89, sm_90a; default: the first GPU.")
    ] = None,
    m: Annotated[int | None, typer.Option(min=1, help="m, where GEMM has a range; default: its largest.")] = None,
    regime: Regime = "sustained",
    as_written: Annotated[
        bool, typer.Option("--as-written", help="Do not compile: what the IR says, not the machine code.")
    ] = False,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Results files of the device (benchmarks/results/NAME): their rates are the ceilings.",
        ),
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with pictures here, too.")] = None,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Tell why a kernel is as fast as it is, without a GPU: banks, sectors, occupancy, waves, roofline, and its rivals."""
    from service.explain.terminal import show
    from service.explain.wording import sections

    if (gemm is None) == (kernel is None):
        given = f"GEMM {gemm!r} and --kernel {kernel!r}" if gemm else "neither GEMM nor --kernel"
        raise InvalidRequest(f"{given} given; explain takes one of them")
    if kernel is not None:
        ways = {"--family": family, "--config": config, "--device": device, "--m": m}
        beside = [f"{name} {value}" for name, value in ways.items() if value is not None]
        if beside or as_written:
            raise InvalidRequest(f"--kernel {kernel} says it all; leave out {', '.join(beside) or '--as-written'}")
        report = _kernel(kernel, measured, data, db)
    else:
        assert gemm is not None
        report = _config(gemm, family, config or "", device, m or 0, regime, as_written, measured, data, db)
    if html is not None:
        from service.explain.page import page

        html.write_text(page(report), encoding="utf-8")
    document = report.to_json() | {"html": str(html) if html else None}
    console.emit(as_json, document, lambda: show(sections(report)))
    if html is not None and not as_json:
        console.out.print(f"page: {html}")


def _kernel(kernel: str, measured: Path | None, data: Path | None, db: str | None) -> Report:
    from service.explain.gather import explained, of_kernel
    from service.explain.rates import of_results
    from tirgemm.artifact import Signer

    if db is None and not database_file(data).exists():
        raise InvalidRequest(
            f"there is no kernel {kernel!r:.80}: {database_file(data)} is not there; name --data or --db"
        )
    key = database_file(data).with_name(SIGNING_KEY)
    with open_store(data, db) as store:
        stored = of_kernel(store, kernel, [Signer.load(key).public] if key.exists() else [])
    if measured is not None:
        rates = of_results(measured, stored.record.device, stored.record.regime)
        stored = replace(stored, rates={**stored.rates, **rates})
    return explained(stored)


def _config(
    text: str,
    family: str | None,
    knobs: str,
    device: str | None,
    m: int,
    regime: str,
    as_written: bool,
    measured: Path | None,
    data: Path | None,
    db: str | None,
) -> Report:
    from service.explain.gather import Report, recorded_time
    from service.explain.rates import of_results, of_store
    from tirgemm.detect import device as detect
    from tirgemm.gemm import REGIMES, Gemm
    from tirgemm.tuning.explain import chosen, explain

    problem, target = Gemm.parse(text), detect(device)
    if regime not in REGIMES:
        raise InvalidRequest(f"regime is {regime!r}; it must be one of {', '.join(REGIMES)}")
    config = chosen(problem, target, family, knobs, regime)
    time: Time | None = None
    rates: dict[str, MeasuredRate] = {}
    if db is not None or database_file(data).exists():
        with open_store(data, db) as store:
            time = recorded_time(store, problem, config, target, regime) if not m else None
            rates = of_store(store, target)
    if measured is not None:
        rates |= of_results(measured, target, regime)
    return Report(
        explain(
            problem, config, target, compiled=not as_written, m=m, regime=regime, time=time, measured=rates
        )
    )  # fmt: skip
