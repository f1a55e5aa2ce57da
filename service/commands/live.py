"""What a person watches while a search runs: the best so far, what became of the candidates, what the rules pruned."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tirgemm.gemm import Gemm

STATUS_STYLES = {
    "measured": "green", "build_failed": "yellow", "wrong": "red", "timed_out": "yellow", "crashed": "red",
}  # fmt: skip


class SearchState:
    """The sum of a tuning's events."""

    def __init__(self, gemm: Gemm, clock: Callable[[], float] = time.monotonic) -> None:
        self.gemm = gemm
        self._clock = clock
        self._started = clock()
        self.stage = "starting"
        self.trials = 0
        self.of = 0
        self.best_us: float | None = None
        self.best = ""
        self.default_us: float | None = None
        self.statuses: Counter[str] = Counter()
        self.pruned: dict[str, int] = {}

    def __call__(self, kind: str, data: dict[str, Any]) -> None:
        """Take one event in."""
        self.stage = {"batch": "searching", "candidate": "searching", "started": "building the default"}.get(kind, kind)
        self.trials = int(data.get("trials", self.trials))
        if kind == "started":
            self.of = int(data["budget"]["trials"])
        elif kind == "fallback":
            timing = data["timings"].get(data.get("regime", "")) or next(iter(_measured(data["timings"])), {})
            self.default_us = timing.get("median_us")
        elif kind == "batch":
            self.pruned = dict(data["pruned"])
        elif kind == "candidate":
            self.statuses[data["status"]] += 1
            self.of = int(data["of"])
            self.best_us, self.best = data["best_us"], data["best"] or ""

    @property
    def elapsed(self) -> float:
        return self._clock() - self._started

    def to_json(self) -> dict[str, Any]:
        return {
            "trials": self.trials, "best_us": self.best_us, "best": self.best, "statuses": dict(self.statuses),
            "pruned": self.pruned, "elapsed_s": self.elapsed,
        }  # fmt: skip

    def __rich__(self) -> RenderableType:
        head = Text.assemble((str(self.gemm), "bold"), f"  {self.stage}  {self.elapsed:.0f} s")
        grid = Table.grid(padding=(0, 2))
        if self.of:
            grid.add_row(
                "trials", ProgressBar(self.of, min(self.trials, self.of), width=30), f"{self.trials}/{self.of}"
            )
        if self.best_us:
            tflops = self.gemm.flops / self.best_us / 1e6
            grid.add_row("best", f"[bold]{self.best_us:.2f} us[/], {tflops:.3g} TFLOP/s", self._speedup())
            grid.add_row("", self.best)
        if self.statuses:
            words = [f"[{STATUS_STYLES.get(s, 'white')}]{n} {s}[/]" for s, n in self.statuses.most_common()]
            grid.add_row("candidates", ", ".join(words))
        if self.pruned:
            rules = sorted(self.pruned.items(), key=lambda rule: -rule[1])
            grid.add_row("pruned by rule", ", ".join(f"{name} {count}" for name, count in rules))
        return Group(head, grid)

    def _speedup(self) -> str:
        return (
            f"{self.default_us / self.best_us:.2f} of the default's speed" if self.default_us and self.best_us else ""
        )


class Watch:
    """Shows a SearchState while it changes: redrawn on a terminal, one line an event of note elsewhere."""

    def __init__(self, state: SearchState, console: Console, quiet: bool = False) -> None:
        self.state = state
        self._console = console
        self._quiet = quiet
        self._live = Live(state, console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
        self._told: float | None = None

    def __enter__(self) -> Watch:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, kind: str, data: dict[str, Any]) -> None:
        self.state(kind, data)
        if self._live is not None or self._quiet:
            return
        if kind == "candidate" and self.state.best_us != self._told and self.state.best_us is not None:
            self._told = self.state.best_us
            at = f"trial {self.state.trials}/{self.state.of}"
            words = f"{self.state.elapsed:6.1f} s  {at}: best {self._told:.2f} us  {self.state.best}"
            self._console.print(words, soft_wrap=True, markup=False)
        elif kind not in ("candidate", "batch"):
            self._console.print(f"{self.state.elapsed:6.1f} s  {kind}")


def _measured(timings: dict[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in timings.values() if isinstance(entry, dict) and "median_us" in entry]
