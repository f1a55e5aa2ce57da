"""``tirgemm reproduce``: a kernel built again and measured, and whether both are as recorded."""

from __future__ import annotations

from typing import Annotated

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm._terminal.tables import Fields, Table
from tirgemm.cli import TrustOption, trust_of
from tirgemm.gemm import regime_named
from tirgemm.service.commands.tune import Data, LockDir, Url


def reproduce(
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="A .tirgemm file, or a kernel's id or hash.")],
    regime: Annotated[
        str | None, typer.Option(help="sustained or isolated; default: that in which it was selected.")
    ] = None,
    measure: Annotated[bool, typer.Option(help="Whether to measure it, too.")] = True,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds that measuring takes at most.")] = 4.0,
    spread: Annotated[
        float, typer.Option(min=0, max=1, help="The share by which it may be slower than recorded.")
    ] = 0.05,
    trust: TrustOption = None,
    data: Data = None,
    db: Url = None,
    lock_dir: LockDir = None,
    as_json: Json = False,
) -> None:
    """Build KERNEL again from its config and compare the hashes, measure it and say whether its figure holds.

    Exit code 1 where the hash is another one, or the figure does not hold.
    """
    from tirgemm.service.views.artifact_file import open_artifact
    from tirgemm.service.views.reproduction import reproduce as build_and_measure

    opened = open_artifact(kernel, data, db, trust_of(trust, data))
    asked = None if regime is None else regime_named(regime)
    result = build_and_measure(opened, regime=asked, measure=measure, seconds=seconds, spread=spread, lock_dir=lock_dir)

    def show() -> None:
        table = Table("problem", "kernel", "built now", "binary", "")
        for one in result.kernels:
            binary = "the same" if one.binary_sha256 == one.rebuilt_binary_sha256 else "another"
            verdict = "reproduced" if one.same else "NOT reproduced"
            table.add_row(one.gemm, one.kernel_sha256[:16], one.rebuilt_kernel_sha256[:16], binary, verdict)
        console.out.print(table)
        fields = []
        if result.figure is not None:
            figure = result.figure
            now = figure.measured
            words = "holds" if figure.holds else f"does NOT hold: {now.value / figure.recorded_us:.3f} times as long"
            fields += [
                ("recorded", f"{figure.recorded_us:.2f} us a call, {figure.regime}, {figure.taken}"),
                ("measured", f"{now.value:.2f} us a call (95 %: {now.low:.2f} to {now.high:.2f})"),
                ("figure", f"{words} (spread {figure.spread:.0%})"),
            ]
        changed = {
            name: (result.environment.get(name, "?"), now)
            for name, now in result.environment_now.items()
            if result.environment and result.environment.get(name) != now
        }
        fields += [(name, f"{then} then, {now} now") for name, (then, now) in changed.items()]
        if fields:
            console.out.print(Fields(fields))

    console.emit(as_json, result.to_json(), show)
    if not result.reproduced:
        raise typer.Exit(console.FAILED)
