"""``make demo``: the main job on this machine, with embedded defaults, GPU or not.

Starts the service on a free loopback port, asks it for three kernels, shows the search live, then loads the kernels in
a second virtual environment that has the ``client`` extra only, calls them, checks them and prints a table.
A second run answers from the database at once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.text import Text

from tirgemm import Client, Device, Gemm
from tirgemm._terminal.console import out as console
from tirgemm._terminal.progress_view import console_view
from tirgemm._terminal.tables import Column, Table
from tirgemm.detect import device as detect
from tirgemm.errors import TirgemmError
from tirgemm.events import Phase
from tirgemm.hardware import ARCHITECTURES
from tirgemm.progress import ProgressTracker
from tirgemm.timings import Timings

ROOT = Path(__file__).resolve().parents[1]
STATE = ROOT / ".demo"
CLIENT_VENV = ROOT / ".venv-client"
CPU_SHAPES = ("512x512x512:f16:nt", "255x257x259:f16:nn", "384x1000x640:f16:nt")
GPU_SHAPES = ("2048x2048x2048:f16:nt", "1023x1021x1027:f16:nn", "512x4096x1024:f16:nt")
BUDGET = {"trials": 24, "seconds": 30.0}


def main() -> int:
    """The demo's exit status; what ended it before is told in one line."""
    try:
        demo()
    except KeyboardInterrupt:
        print("demo: interrupted; the next `make demo` goes on from what is in .demo", file=sys.stderr)
        return 130
    except (subprocess.CalledProcessError, TirgemmError) as failed:
        print(f"demo: {failed}", file=sys.stderr)
        return 1
    return 0


def demo() -> None:
    started = time.monotonic()
    device = demo_device(detect())
    shapes = [Gemm.parse(text) for text in (GPU_SHAPES if device.kind == "cuda" else CPU_SHAPES)]
    console.print(Text.assemble(("tirgemm demo", "bold"), f" on {device.model} ({device.key})"))
    STATE.mkdir(exist_ok=True)
    client_python = client_environment(device)
    with service() as url:
        console.print(f"service: {url}  (OpenAPI: {url}/openapi.json)")
        client = Client(url, trust=[], cache_dir=STATE / "cache")
        keys = client.keys()
        trust_file = STATE / "trusted_keys"
        trust_file.write_text("".join(f"{key} demo service\n" for key in keys))
        trust_file.chmod(0o600)
        console.print(f"trusting the service's key, written to {trust_file.relative_to(ROOT)}: {', '.join(keys)}")
        for gemm in shapes:
            tuned(client, gemm, device)
        report = subprocess.run(
            [
                client_python,
                ROOT / "scripts" / "demo_client.py",
                url,
                str(trust_file),
                str(STATE / "client-cache"),
                device.name,
                *map(str, shapes),
            ],
            check=True,
            stdout=subprocess.PIPE,
            cwd=STATE,
        )
    show(json.loads(report.stdout))
    console.print(
        f"done in {time.monotonic() - started:.1f} s; the records are in .demo/data, a second run starts from them"
    )


def demo_device(first: Device) -> Device:
    """The GPU that is there, where kernels are made for its architecture, else the CPU."""
    return first if first.kind == "cpu" or first.arch in ARCHITECTURES else detect("cpu")


@contextmanager
def service() -> Iterator[str]:
    """``tirgemm serve`` on a free loopback port, with its worker; stopped at the end."""
    info = STATE / "data" / "server.json"
    info.unlink(missing_ok=True)
    command: list[str | Path] = [
        Path(sys.executable).parent / "tirgemm",
        "serve",
        "--port",
        "0",
        "--data",
        STATE / "data",
    ]
    with (STATE / "serve.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 60
        while not info.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the service did not start:\n{(STATE / 'serve.log').read_text()[-2000:]}")
            time.sleep(0.05)
        yield json.loads(info.read_text())["url"]
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()


def tuned(client: Client, gemm: Gemm, device: Device) -> None:
    """Ask for one shape and follow its job. Raises what ends it."""
    began = time.monotonic()
    tracker = ProgressTracker(str(gemm), phase=Phase.QUEUED)
    with console_view(tracker, console) as view:
        kernel = client.document(gemm, device=device.key, budget=BUDGET, on_event=view)
    seconds, statuses = time.monotonic() - began, tracker.statuses
    words = ", ".join(f"{count} {status}" for status, count in statuses.items()) or "answered from the database"
    us = Timings.from_json(kernel["timings"]).of("sustained")
    served = f"  {us.median_us:.1f} us a call as it is served" if us else ""
    console.print(Text.assemble(("●", "green"), f" {gemm}  {seconds:.2f} s{served}  {words}"))


def client_environment(device: Device) -> Path:
    """A second virtual environment with the ``client`` extra only, from a wheel of this checkout."""
    python = CLIENT_VENV / "bin" / "python"
    sources = [p for name in ("tirgemm", "service", "tuning_db") for p in (ROOT / name).rglob("*.[pch]*")]
    newest = max(
        p.stat().st_mtime
        for p in (*sources, ROOT / "pyproject.toml", ROOT / "requirements-client.lock")
        if "__pycache__" not in p.parts
    )
    stamp = CLIENT_VENV / f".installed-{device.kind}"
    if stamp.exists() and stamp.stat().st_mtime > newest:
        return python
    console.print("setting up a second virtual environment with the client extra only …")
    wheels = STATE / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    quiet = ["-qq", "--disable-pip-version-check"]
    pip: list[str | Path] = [python, "-m", "pip"]
    subprocess.run([sys.executable, "-m", "venv", "--clear", CLIENT_VENV], check=True)
    subprocess.run([*pip, "wheel", *quiet, "--no-deps", "--wheel-dir", wheels, ROOT], check=True)
    subprocess.run([*pip, "install", *quiet, "--requirement", ROOT / "requirements-client.lock"], check=True)
    subprocess.run([*pip, "install", *quiet, "--no-deps", *wheels.glob("tirgemm-*.whl")], check=True)
    if device.kind == "cuda":
        # The arrays that a user would bring: the client itself needs none of it.
        subprocess.run([*pip, "install", *quiet, "cupy-cuda13x[ctk]"], check=True)
    stamp.touch()
    return python


def show(rows: list[dict[str, Any]]) -> None:
    """The table, and under it what it takes to read it."""
    baselines = sorted({name for row in rows for name in row["baselines"]})
    heads: tuple[str | Column, ...] = (
        "gemm",
        ">default",
        ">tuned",
        *(f">{name}" for name in baselines),
        Column("error", number=True, optional=2),
        Column("call", number=True, optional=1),
        ">certified",
    )
    table = Table(*heads, title="microseconds a call: default, tuned and baselines side by side in one run")
    for row in rows:
        table.add_row(
            row["gemm"],
            f"{row['default_us']:.0f}",
            Text(f"{row['tuned_us']:.0f}", style="bold"),
            *(f"{row['baselines'][name]:.0f}" if name in row["baselines"] else "-" for name in baselines),
            f"{row['error_over_bound']:.4f}",
            f"{row['call_us']:.0f}",
            "yes" if row["certified"] else "no",
        )
    console.print()
    console.print(table)
    console.print()
    console.print("error: the largest, over its bound; call: timed in the client's environment", style="dim")
    for row in rows:
        why = f"; {row['why_default']}" if row["why_default"] else ""
        console.print(f"{row['gemm']}: {row['config']}{why}", style="dim")
    if busy := [row["busy"] for row in rows if row["busy"]]:
        console.print(f"{len(busy)} of {len(rows)} were {busy[-1]}", style="yellow")


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
