"""The commands that need the ``client`` extra alone: get, call, verify, devices, version.

Exit codes: 0 done, 1 the operation failed, 2 bad input or a missing extra, 130 interrupted.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.folder_option import data_folder
from tirgemm._terminal.progress_view import console_view
from tirgemm._terminal.tables import Table
from tirgemm._terminal.unused_options import refuse_search_options, require_unused
from tirgemm._user_folders import SIGNING_KEY, expanded
from tirgemm.errors import Interrupted, InvalidRequest
from tirgemm.events import Phase
from tirgemm.progress import ProgressTracker, role_of_document

if TYPE_CHECKING:
    from tirgemm.client import Client

app = typer.Typer(
    name="tirgemm",
    help="The fastest half-precision matrix multiply for your shape on your device: tuned, verified, signed, served.",
    epilog="Exit codes: 0 done, 1 failed, 2 bad input or a missing extra. --json and --debug go behind any command.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

URL = "http://127.0.0.1:8000"
GemmText = Annotated[str, typer.Argument(metavar="GEMM", help="The problem, such as 4096x4096x4096:f16:nt.")]
ArtifactPath = Annotated[Path, typer.Argument(metavar="FILE", help="A .tirgemm artifact.")]
TrustOption = Annotated[
    list[str] | None,
    typer.Option("--trust", metavar="KEY|FILE", help="Trust this key or file of keys alone, instead of your own."),
]
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data", metavar="DIR", parser=data_folder, help="Trust the signing key of this data folder of yours, too."
    ),
]
RegimeOption = Annotated[str, typer.Option(help="sustained or isolated.")]


def _print_version(asked: bool) -> None:
    from tirgemm._version import __version__

    if asked:
        console.out.print(f"tirgemm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error (behind any command).")
    ] = False,
) -> None:
    del version
    console.MODE.debug = console.MODE.debug or debug


@app.command()
def get(
    gemm: GemmText,
    url: Annotated[str, typer.Option(help="The service.")] = URL,
    out: Annotated[Path | None, typer.Option("--output", "--out", "-o", help="Where the artifact goes.")] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, sm_90a, or a device key; default: this machine's.")
    ] = None,
    regime: Annotated[str | None, typer.Option(help="sustained, the default, or isolated.")] = None,
    wait: Annotated[
        float | None, typer.Option(help="Take the default kernel if tuning takes longer than this (s).")
    ] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Take the default kernel as soon as it is there: do not wait for tuning.")
    ] = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Accept an unverified build for a device that no worker has.")
    ] = False,
    effort: Annotated[
        str | None, typer.Option(help="How far the search goes: none, quick, standard, exhaustive.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="Candidates that the search may build.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Seconds that the search may take.")] = None,
    seed: Annotated[int | None, typer.Option(min=0)] = None,
    retune: Annotated[
        bool, typer.Option("--retune", help="Go on with the search by at most --trials candidates, whatever there is.")
    ] = False,
    other_devices: Annotated[
        bool, typer.Option("--other-devices", help="Also try what was shipped for similar devices, verified there.")
    ] = False,
    priority: Annotated[int | None, typer.Option(help="Of a new job: higher first, 0 by default.")] = None,
    window: Annotated[
        str | None, typer.Option(help="The hours, in UTC, in which a new job may start, such as 22:00-06:00.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Take it from the cache and ask the service nothing.")
    ] = False,
    locked: Annotated[
        Path | None,
        typer.Option("--locked", metavar="FILE", help="Take exactly what this lock file has for GEMM, or that name."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", help="With --locked: look into this folder first."),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust", metavar="KEY|FILE", help="Trust this key from now on, or the keys in this file this time."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Get the kernel for GEMM from a service: tuned if need be, its signature checked, written to a file."""
    from tirgemm._client.service_documents import KERNEL, checked
    from tirgemm._client.told_options import told_as_options
    from tirgemm._terminal.output_file import check_output, write_artifact
    from tirgemm.artifact import read
    from tirgemm.config import Config
    from tirgemm.detect import device as detect
    from tirgemm.gemm import Gemm, regime_named
    from tirgemm.timings import Timings

    check_output(out)
    if locked is not None:
        refuse_search_options(
            {"--wait": wait, "--default": default},
            {"--effort": effort, "--trials": trials, "--seconds": seconds, "--seed": seed}
            | {"--retune": retune, "--other-devices": other_devices},
            {"--priority": priority, "--window": window},
        )
        with _client(url, trust, offline=offline) as client, told_as_options():
            data = client.locked_package(
                locked, gemm, folder=folder, device=device, regime=regime, verify=not unverified
            )
            package = read(data, client.trust)
        default_name = f"{gemm.replace(':', '-').replace('=', '').replace('/', '-')}.tirgemm"
        path = write_artifact(package, out, Path(default_name))
        told = {"file": str(path), "gemm": str(package.manifest.gemm), "artifact_sha256": package.sha256}
        console.emit(as_json, told, lambda: console.out.print(f"{path}  {package.sha256}, as it is locked"))
        return
    if folder is not None:
        raise InvalidRequest("--from is where --locked looks for artifacts; give that, too")
    if default:
        require_unused("--default does not wait for tuning", ("--wait", wait is not None))
    problem, regime = Gemm.parse(gemm), regime or "sustained"
    target: Any = detect() if device is None else device
    budget = {k: v for k, v in (("trials", trials), ("seconds", seconds)) if v is not None}
    queue = {k: v for k, v in (("priority", priority), ("window", window)) if v is not None}
    patience: Any = "fallback" if default else True if wait is None else wait
    tracker = ProgressTracker(str(problem), phase=Phase.QUEUED)
    with _client(url, trust, offline=offline) as client, console_view(tracker, console.err, quiet=as_json) as view:
        try:
            with told_as_options():
                document = client.document(
                    problem,
                    device=target,
                    regime=regime,
                    wait=patience,
                    on_event=view,
                    effort=effort,
                    budget=budget or None,
                    seed=seed,
                    retune=retune,
                    verify=not unverified,
                    queue=queue,
                    other_devices=other_devices,
                )
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"no longer waiting for {problem}; a job that {client.url} has begun goes on: "
                "`tirgemm jobs list` shows it"
            ) from error
        with told_as_options():
            data = client.package(document, problem, device=target, regime=regime, verify=not unverified, on_event=view)
        checked(document, KERNEL, client.url)
        package = read(data, client.trust)
    path = write_artifact(package, out, Path(f"{str(problem).replace(':', '-').replace('=', '')}.tirgemm"))
    fault = package.manifest.certificate_fault
    timing = Timings.from_json(document["timings"]).of(regime_named(regime))

    def show() -> None:
        role = role_of_document(document)
        console.out.print(f"{path}  {role}  {Config(document['family'], tuple(document['config'].items()))}")
        if timing:
            ratios = ", ".join(f"{x.ratio:.2f} of {name}" for name, x in timing.baselines.items())
            console.out.print(f"{timing.median_us:.2f} us a call ({regime}){'; speed ' + ratios if ratios else ''}")
            if timing.busy:
                console.out.print(timing.busy, style="yellow")
        if fault:
            console.out.print(f"not verified: {fault}", style="yellow")

    console.emit(as_json, {"file": str(path), "kernel": document}, show)


@app.command()
def call(
    file: ArtifactPath,
    a: Annotated[Path | None, typer.Option(help="A as .npy; random by default.")] = None,
    b: Annotated[Path | None, typer.Option(help="B as .npy.")] = None,
    c: Annotated[Path | None, typer.Option(help="C as .npy.")] = None,
    bias: Annotated[Path | None, typer.Option(help="The bias as .npy.")] = None,
    alpha: Annotated[float | None, typer.Option(help="1 by default.")] = None,
    beta: Annotated[float | None, typer.Option(help="1 by default.")] = None,
    m: Annotated[int | None, typer.Option(min=1, help="m, where the kernel takes a range.")] = None,
    out: Annotated[Path | None, typer.Option("--output", "--out", "-o", help="Write D here as .npy (fp32).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random operands.")] = 0,
    trust: TrustOption = None,
    data: DataOption = None,
    as_json: Json = False,
) -> None:
    """Run a kernel once, compare with NumPy and time some calls."""
    import numpy as np

    from tirgemm import _trial as trial
    from tirgemm._terminal.output_file import check_output
    from tirgemm._trial.reference import read_array
    from tirgemm.artifact import load
    from tirgemm.artifact.regular_file import write_named
    from tirgemm.errors import VerificationFailed

    check_output(out)
    kernel = load(file, trust=artifact_trust(trust, data))
    paths = {"a": a, "b": b, "c": c, "bias": bias}
    given = {name: read_array(path) for name, path in paths.items() if path is not None}
    tried = trial.run(kernel, m=m, given=given, alpha=alpha, beta=beta, seed=seed)
    if out is not None:
        np.save(saved := BytesIO(), tried.result)
        write_named(out, saved.getvalue())
    document = {
        "gemm": str(kernel.gemm),
        "device": kernel.device.key,
        "m": tried.m,
        "median_us": tried.median_us,
        "tflops": kernel.gemm.flops * tried.m / kernel.gemm.m_max / tried.median_us / 1e6,
        "error_over_bound": tried.error,
        "passed": tried.passed,
        "out": str(out) if out else None,
    }
    if not tried.passed:
        raise VerificationFailed(f"{file}: the result is {tried.error:.3g} times its bound away from NumPy's")

    def show() -> None:
        console.out.print(f"{kernel.gemm} on {kernel.device.model}: right (error {tried.error:.2g} of its bound)")
        console.out.print(f"{tried.median_us:.2f} us a call from the host, {document['tflops']:.3g} TFLOP/s")

    console.emit(as_json, document, show)


@app.command()
def verify(
    file: ArtifactPath,
    trust: TrustOption = None,
    data: DataOption = None,
    run: Annotated[bool, typer.Option(help="Run it against NumPy too, where its device is here.")] = True,
    as_json: Json = False,
) -> None:
    """Check an artifact: hashes and signature, its certificate, and its result against NumPy."""
    from tirgemm import _trial as trial
    from tirgemm.artifact import load, read
    from tirgemm.errors import DeviceUnavailable, IncompatibleArtifact, VerificationFailed

    trusted = artifact_trust(trust, data)
    package = read(file, trusted)
    certificate, fault = package.manifest.certificate, package.manifest.certificate_fault
    checks: list[dict[str, Any]] = [{"check": "signature and hashes", "result": "passed", "detail": package.sha256}]
    if certificate is None:
        checks.append({"check": "certificate", "result": "absent", "detail": fault})
    elif fault:
        checks.append({"check": "certificate", "result": "failed", "detail": fault})
    else:
        detail = f"{len(certificate['tests'])} tests against {certificate.get('reference')}"
        checks.append({"check": "certificate", "result": "passed", "detail": detail})
    if run:
        try:
            kernel = load(file, trust=trusted)
            tried = [trial.run(kernel, m=one.gemm.m_max, timed=False) for one in kernel.manifest.kernels]
            worst = max(tried, key=lambda one: (not one.passed, one.error))
            detail = f"error {worst.error:.2g} of its bound"
            detail += f" at m = {worst.m}, the largest of {len(tried)} kernels" if len(tried) > 1 else ""
            checks.append({"check": "run here", "result": "passed" if worst.passed else "failed", "detail": detail})
        except (DeviceUnavailable, IncompatibleArtifact) as error:
            checks.append({"check": "run here", "result": "skipped", "detail": str(error)})
    wrong = [check for check in checks if check["result"] in ("failed", "absent")]
    failed = [f"{check['check']} {check['result']} ({check['detail']})" for check in wrong]
    document = {"file": str(file), "gemm": str(package.manifest.gemm), "passed": not failed, "checks": checks}

    def show() -> None:
        table = Table("check", "result", "detail", title=str(document["gemm"]))
        for check in checks:
            table.add_row(check["check"], check["result"], check["detail"])
        console.out.print(table)

    if failed:
        console.fail(as_json, document, VerificationFailed(f"{file}: {', '.join(failed)}"))
    console.emit(as_json, document, show)


@app.command()
def devices(as_json: Json = False) -> None:
    """The devices of this machine, and the architectures that can be compiled for by name."""
    from tirgemm.detect import devices as detect
    from tirgemm.detect import why_no_gpu
    from tirgemm.hardware import ARCHITECTURES

    local_devices, missing = detect(), why_no_gpu()

    def show() -> None:
        table = Table("name", "model", "arch", ">units", ">memory", "key")
        for device in local_devices:
            memory = f"{device.memory_bytes / 2**30:.1f} GiB"
            table.add_row(device.name, device.model, device.arch, str(device.units), memory, device.key)
        console.out.print(table)
        if missing:
            console.out.print(f"no GPU: {missing}")
        console.out.print(f"by name, to compile for: {', '.join(ARCHITECTURES)}")

    document = {
        "devices": [d.to_json() for d in local_devices],
        "named": list(ARCHITECTURES),
        "no_gpu": missing or None,
    }
    console.emit(as_json, document, show)


@app.command()
def version(as_json: Json = False) -> None:
    """The versions of tirgemm and of what it stands on."""
    from tirgemm._version import __version__
    from tirgemm.detect import environment

    versions = {"tirgemm": __version__} | dict(environment())
    console.emit(as_json, versions, lambda: console.out.print("\n".join(f"{k} {v}" for k, v in versions.items())))


def artifact_trust(given: list[str] | None, data: Path | None) -> Any:
    """``trust_of`` where ``data`` is asked for nothing but its key. Raises InvalidRequest where it adds none."""
    if given:
        require_unused("--trust says whom to trust in place of your own keys", ("--data", data))
    elif data is not None and not (expanded(data) / SIGNING_KEY).is_file():
        raise InvalidRequest(f"--data is {data}, which holds no signing key to trust; name a data folder of yours")
    return trust_of(given, data)


def trust_of(given: list[str] | None, data: Path | None = None) -> Any:
    """The Trust of ``--trust``: keys, or a file of keys; by default whom the user trusts, and the own key of
    ``data``."""
    from tirgemm._client.arguments import as_trust
    from tirgemm.artifact import Trust

    if not given:
        return Trust.default(data)
    keys = [text for text in given if text.startswith("ed25519:")]
    return as_trust(keys) if len(keys) == len(given) else as_trust(_file_of_keys(given))


def _client(url: str, given: list[str] | None, *, offline: bool = False) -> Client:
    """The service at ``url``. A file of keys is used this once; of ``--trust KEY`` the service's own is remembered for
    it, and any other one is trusted from now on: that of kernels which were merged into the service from elsewhere.
    ``offline``, nothing is remembered."""
    from tirgemm.artifact import Trust
    from tirgemm.client import Client

    if given and not all(text.startswith("ed25519:") for text in given):
        return Client(url, trust=_file_of_keys(given), offline=offline)
    if offline:
        return Client(url, trust=given, offline=True)
    client = Client(url)
    if given:
        shown = client.keys()
        client.trust_server(*([key for key in given if key in shown] or given))
        for key in given:
            if key not in shown:
                Trust.of_user().add(key, client.url)
    return client


def _file_of_keys(given: list[str]) -> Path:
    if len(given) > 1:
        raise typer.BadParameter("--trust takes any number of keys (ed25519:...) or one file of keys, not both")
    if not Path(given[0]).is_file():
        raise InvalidRequest(f"--trust is {given[0]!r:.200}, which is neither a key (ed25519:...) nor a file of keys")
    return Path(given[0])
