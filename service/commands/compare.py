"""``tirgemm compare``: two artifacts side by side, as they are recorded or raced on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from tirgemm._terminal import console
from tirgemm._terminal.console import Json
from tirgemm.cli import RegimeOption, TrustOption, trust_of
from tirgemm.gemm import regime_named
from tirgemm.service.commands.tune import Data, LockDir, Url
from tirgemm.service.explain.tables import Section, count, row, table

if TYPE_CHECKING:
    from tirgemm.service.views.comparison import Comparison


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A .tirgemm file, or a kernel's id or hash.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What it is compared with.")],
    regime: RegimeOption = "sustained",
    measure: Annotated[
        bool, typer.Option("--measure", help="Race both on this machine, in one interleaved run, now.")
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="Seconds that --measure takes at most.")] = 4.0,
    trust: TrustOption = None,
    data: Data = None,
    db: Url = None,
    lock_dir: LockDir = None,
    as_json: Json = False,
) -> None:
    """Compare two artifacts: the knobs that differ, their times with 95 % intervals, their machine code."""
    from tirgemm.service.explain.terminal import show
    from tirgemm.service.views.artifact_file import open_artifact
    from tirgemm.service.views.comparison import compare as put_side_by_side
    from tirgemm.service.views.comparison import compare_now

    trusted = trust_of(trust, data)
    one, two = (open_artifact(text, data, db, trusted) for text in (a, b))
    asked = regime_named(regime)
    comparison = compare_now(one, two, asked, seconds, lock_dir) if measure else put_side_by_side(one, two, asked)
    console.emit(as_json, comparison.to_json(), lambda: show(sections(comparison)))


def sections(comparison: Comparison) -> Iterator[Section]:
    """The comparison in tables: what both are, knobs, times, machine code."""
    yield from (_what(comparison), _knobs(comparison), _times(comparison), _code(comparison))


def _what(comparison: Comparison) -> Section:
    sides = (comparison.a, comparison.b)
    manifests = [side.package.manifest for side in sides]
    rows = [
        ("from", *(side.where for side in sides)),
        ("problem", *(str(manifest.gemm) for manifest in manifests)),
        ("device", *(f"{manifest.device.model}, {manifest.device.arch}" for manifest in manifests)),
        ("family", *(manifest.config.family for manifest in manifests)),
        ("certificate", *(manifest.certificate_fault or "passed" for manifest in manifests)),
        ("signer", *("trusted here" if side.trusted else "NOT trusted here" for side in sides)),
        ("built by", *(f"tirgemm {manifest.tirgemm}" for manifest in manifests)),
        ("kernel", *(manifest.kernel_sha256[:16] for manifest in manifests)),
    ]
    notes = ["They are one and the same kernel."] if comparison.same_kernel else []
    return table("What is compared", ("", "A", "B"), [row(*cells) for cells in rows], notes=notes)


def _knobs(comparison: Comparison) -> Section:
    rows = [
        row(each.knob, "-" if each.kernel is None else str(each.kernel), "-" if each.other is None else str(each.other))
        for each in comparison.differences
    ]
    if not rows:
        return Section("Knobs", notes=("All knobs are the same.",))
    return table("Knobs that differ", ("knob", "A", "B"), rows)


def _times(comparison: Comparison) -> Section:
    from tirgemm.service.views.comparison import verdict

    rows = []
    for name, opened, time in zip("AB", (comparison.a, comparison.b), comparison.timing.times, strict=True):
        if time is None:
            rows.append(row(name, "-", "", "", "", f"it was not measured in the regime {comparison.regime}"))
            continue
        interval, flops = time.interval, opened.package.manifest.gemm.flops
        spread = f"{interval.low:.2f} to {interval.high:.2f}" if interval else "-"
        clock = time.samples.conditions.get("clock_mhz") if time.samples else None
        rows.append(row(name, f"{time.us:.2f}", spread, f"{flops / time.us / 1e6:.3g}", str(clock or ""), time.taken))
    heads = ("", ">us a call", ">95 % interval", ">TFLOP/s", ">MHz", "taken")
    return table(f"Times, {comparison.regime}", heads, rows, notes=tuple(verdict(comparison.timing, "A", "B")))


def _code(comparison: Comparison) -> Section:
    one, two = comparison.code
    pairs: list[tuple[str, int | None, int | None]] = [("bytes of code and data", one.nbytes, two.nbytes)]
    figures = [dict(code.figures) for code in comparison.code]
    pairs += [(name, figures[0].get(name), figures[1].get(name)) for name in {**figures[0], **figures[1]}]
    if one.instructions is not None or two.instructions is not None:
        pairs.append(("instructions", one.instructions, two.instructions))
    for title, counts in (("", (dict(one.units), dict(two.units))), ("main loop: ", (dict(one.loop), dict(two.loop)))):
        mine, theirs = counts
        pairs += [(f"{title}{name}", mine.get(name, 0), theirs.get(name, 0)) for name in {**mine, **theirs}]
    rows = [row(name, *("-" if n is None else count(n) for n in (left, right))) for name, left, right in pairs]
    notes = [f"{name}: {code.missing}." for name, code in zip("AB", comparison.code, strict=True) if code.missing]
    return table("Machine code", ("", ">A", ">B"), rows, notes=notes)
