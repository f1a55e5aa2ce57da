"""``tirgemm explain``: why a kernel is as fast as it is, and why the others lost, on a machine with or without a
GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.output_file import check_output
from tirgemm._terminal.unused_options import require_unused
from tirgemm.errors import DeviceUnavailable, InvalidRequest, Unsupported
from tirgemm.gemm import Gemm, Regime, regime_named
from tirgemm.service.commands.tune import Data, Url
from tirgemm.tuning_db.data_folder import database_file, open_store

if TYPE_CHECKING:
    from tirgemm.analysis.explanation import Explanation
    from tirgemm.analysis.roofline import MeasuredRate, MeasuredTime
    from tirgemm.analysis.timeline.recording import Recording
    from tirgemm.config import Config
    from tirgemm.device import Device
    from tirgemm.service.explain.gather import Report
    from tirgemm.service.explain.timeline_files import TimelineFiles


def explain(
    gemm: Annotated[
        str | None, typer.Argument(metavar="GEMM", help="The problem, such as 4096x4096x4096:f16:nt.")
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(metavar="ID", help="A kernel of the data folder, by its id or hash.")
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="Whose kernel; default: the family that is predicted to be fastest.")
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(metavar="KNOB=VALUE,...", help="Knobs that differ from the family's default, or --kernel's."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda, cuda:1, or by name: sm_80, sm_86, sm_89, sm_90a; default: the first GPU.")
    ] = None,
    m: Annotated[int | None, typer.Option(min=1, help="m, where GEMM has a range; default: its largest.")] = None,
    regime: Annotated[str | None, typer.Option(help="sustained or isolated; default: sustained.")] = None,
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
    words: Annotated[
        bool, typer.Option("--words", help="End with what the knobs, words and signs of the report mean.")
    ] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with pictures here, too.")] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Record on the GPU what every warpgroup does when, into FILE (NAME.json.gz); draw it (NAME.html) and "
            "export it for Perfetto (NAME.trace.json). Without GEMM and --kernel: draw and export what FILE has.",
        ),
    ] = None,
    data: Data = None,
    db: Url = None,
    as_json: Json = False,
) -> None:
    """Tell why a kernel is as fast as it is, without a GPU: banks, sectors, occupancy, waves, roofline, and its
    rivals."""
    from tirgemm.service.explain.report_text import sections
    from tirgemm.service.explain.terminal import show
    from tirgemm.service.explain.timeline_files import TimelineFiles

    check_output(html, "--html")
    files = TimelineFiles.beside(timeline) if timeline is not None else None
    ways = {"--family": family, "--device": device, "--m": m, "--regime": regime, "--as-written": as_written}
    if files is not None and gemm is None and kernel is None:
        more = {"--config": config, "--measured": measured, "--html": html}
        require_unused(f"what {files.recording} has is drawn as it is", *ways.items(), *more.items())
        _show_timeline(files, as_json=as_json)
        return
    if (gemm is None) == (kernel is None):
        given = f"GEMM {gemm!r} and --kernel {kernel!r}" if gemm else "neither GEMM nor --kernel"
        raise InvalidRequest(f"{given} given; explain takes one of them")
    places = DataSources(measured, data, db)
    if files is not None:
        files.check()
        # Before anything is built: the GPU may not be here.
        _recording_gpu(device)
    if kernel is not None:
        require_unused(f"--kernel {kernel} is told from its machine code", ("--as-written", as_written))
        require_unused(f"--kernel {kernel} says it all", *ways.items())
        report = _kernel(kernel, config or "", places)
    else:
        assert gemm is not None
        wanted = ExplainTarget.of(gemm, device, regime or "sustained", m or 0, compiled=not as_written)
        report = _config(wanted, family, config or "", places)
    recording = _record(report.explanation, _recording_gpu(device), files) if files is not None else None
    if html is not None:
        from tirgemm.artifact.regular_file import write_named
        from tirgemm.service.explain.page import page

        write_named(html, page(report, recording).encode())
    document = report.to_json() | {"html": str(html) if html else None}
    if files is not None and recording is not None:
        document |= {"timeline": files.to_json(recording)}
    console.emit(as_json, document, lambda: show(sections(report, with_words=words)))
    if html is not None and not as_json:
        console.out.print(f"page: {html}")
    if files is not None and recording is not None and not as_json:
        _tell_timeline(files, recording)


@dataclass(frozen=True, slots=True)
class DataSources:
    """Where measured rates, kernels and recorded times are looked up."""

    measured: Path | None
    data: Path | None
    db: str | None

    @property
    def has_store(self) -> bool:
        return self.db is not None or database_file(self.data).exists()


@dataclass(frozen=True, slots=True)
class ExplainTarget:
    """What is explained, but for the config."""

    gemm: Gemm
    device: Device
    regime: Regime
    m: int = 0
    compiled: bool = True

    @classmethod
    def of(cls, text: str, device: str | None, regime: str, m: int, *, compiled: bool) -> ExplainTarget:
        """Raises InvalidGemm, InvalidDevice, DeviceUnavailable, InvalidRequest."""
        from tirgemm.detect import device as detect
        from tirgemm.hardware import ARCHITECTURES

        gemm, target = Gemm.parse(text), detect(device)
        if device is None and target.kind != "cuda":
            raise InvalidRequest(
                "GPU kernels are explained, and this machine has no GPU: name one with --device, such as sm_90a; "
                f"known are {', '.join(ARCHITECTURES)}"
            )
        return cls(gemm, target, regime_named(regime), m, compiled)


def _recording_gpu(name: str | None) -> Device:
    """The GPU of this machine that records a timeline. Raises DeviceUnavailable, InvalidDevice."""
    from tirgemm.detect import device as detect

    gpu = detect(name or "cuda")
    if gpu.kind != "cuda" or not gpu.present:
        raise DeviceUnavailable(
            f"--timeline records on a GPU of this machine, and device {name} is none; without GEMM and --kernel it "
            f"draws what was recorded elsewhere"
        )
    return gpu


def _record(explanation: Explanation, gpu: Device, files: TimelineFiles) -> Recording:
    """Record the kernel that is explained, and write its files."""
    from tirgemm.bench.results import environment
    from tirgemm.bench.suites import benchmarks_folder
    from tirgemm.tuning.timed_kernel import record, timed_kernel

    if gpu.key != explanation.device.key:
        raise DeviceUnavailable(
            f"the kernel is for {explanation.device.key}; the GPU that would record it is {gpu.key}"
        )
    kernel = timed_kernel(explanation.gemm, explanation.config, gpu)
    home = benchmarks_folder()
    about = environment(gpu, home.parent if home else None)
    recording = record(kernel, gpu, about, m=explanation.m)
    recording.write(files.recording)
    files.export(recording)
    return recording


def _show_timeline(files: TimelineFiles, *, as_json: bool) -> None:
    """Draw and export a recording that is there."""
    from tirgemm.analysis.timeline.recording import Recording

    recording = Recording.read(files.recording)
    files.export(recording)
    console.emit(as_json, {"timeline": files.to_json(recording)}, lambda: _tell_timeline(files, recording))


def _tell_timeline(files: TimelineFiles, recording: Recording) -> None:
    taken = "measured" if recording.measured else "emulated, nothing was measured"
    console.out.print(
        f"timeline of {recording.gemm} ({taken}): {files.recording}, drawn: {files.page}, for Perfetto: {files.trace}",
        soft_wrap=True,
        markup=False,
    )


def _kernel(kernel: str, knobs: str, places: DataSources) -> Report:
    """The report of a stored kernel; with ``knobs`` that of its config where those are changed."""
    from tirgemm.artifact import Trust
    from tirgemm.service.explain.gather import explained
    from tirgemm.service.explain.rates import rates_in_results
    from tirgemm.service.explain.stored_kernel import StoredKernelInput
    from tirgemm.service.views.kernel_refs import find_kernel

    if not places.has_store:
        raise InvalidRequest(
            f"there is no kernel {kernel!r:.80}: {database_file(places.data)} is not there; name --data or --db"
        )
    with open_store(places.data, places.db, to_read=True) as store:
        record = find_kernel(store, kernel)
        if record.device.kind != "cuda":
            raise Unsupported(
                f"kernel {record.id} is for a CPU, and GPU kernels are explained; `tirgemm candidates {record.gemm}` "
                f"has what it was chosen from, `tirgemm show {record.id} --asm` its machine code"
            )
        stored = StoredKernelInput.of(store, record, Trust.default(places.data))
    if knobs:
        return _config(
            ExplainTarget(record.gemm, record.device, record.regime), None, knobs, places, base=record.config
        )
    if places.measured is not None:
        rates = rates_in_results(places.measured, record.device, record.regime)
        stored = replace(stored, rates={**stored.rates, **rates})
    return explained(stored)


def _config(
    wanted: ExplainTarget, family: str | None, knobs: str, places: DataSources, base: Config | None = None
) -> Report:
    from tirgemm.analysis.roofline import Measurements
    from tirgemm.service.explain.gather import Report, config_time
    from tirgemm.service.explain.rates import rates_in_results, rates_in_store
    from tirgemm.tuning.conflict_fixes import conflict_fixes
    from tirgemm.tuning.explain import chosen, explain

    gemm, device, regime = wanted.gemm, wanted.device, wanted.regime
    config = chosen(gemm, device, family, knobs, regime, base)
    _tell_followers(base or chosen(gemm, device, family, "", regime), config, knobs)
    time: MeasuredTime | None = None
    rates: dict[str, MeasuredRate] = {}
    if places.has_store:
        with open_store(places.data, places.db, to_read=True) as store:
            time = config_time(store, gemm, config, device, regime) if not wanted.m else None
            rates = rates_in_store(store, device)
    if places.measured is not None:
        rates |= rates_in_results(places.measured, device, regime)
    measured = Measurements(time, rates)
    explanation = explain(gemm, config, device, compiled=wanted.compiled, m=wanted.m, regime=regime, measured=measured)
    return Report(explanation, fixes=conflict_fixes(explanation, regime))


def _tell_followers(base: Config, config: Config, knobs: str) -> None:
    """Say on stderr which knobs changed that were not named, for the rules need them to."""
    from tirgemm.tuning.rivals import differences

    named = {part.partition("=")[0].strip() for part in knobs.split(",")}
    followers = [each for each in differences(base, config) if each.knob not in named]
    if followers:
        changes = ", ".join(f"{each.knob}={each.other} (not {each.kernel})" for each in followers)
        console.err.print(f"also changed, as {config.family}'s rules need it: {changes}", markup=False, soft_wrap=True)
