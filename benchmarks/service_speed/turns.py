"""What measurements of the service have in common: options, a server, turns beside the bare route, the results file."""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.service_speed import document
from benchmarks.service_speed.load import Turn, drive, request
from benchmarks.service_speed.server import BARE
from benchmarks.service_speed.stored_kernels import DEVICE
from tirgemm import Gemm, rounds
from tirgemm.bench.results import environment, figures_document, load, measured_at, write
from tirgemm.detect import device as detect_device
from verification import command
from verification.service.processes import server_process

ROOT = Path(__file__).resolve().parents[2]
TurnLists = tuple[list[Turn], list[Turn]]


@dataclass(frozen=True)
class Server:
    """A server process: its port, its process id, and the headers of a request with a key."""

    port: int
    pid: int
    headers: dict[str, str]

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        """The bytes of a request."""
        return request(method, path, self.headers, b"" if body is None else json.dumps(body).encode())

    def hits(self, problems: Sequence[Gemm]) -> list[bytes]:
        """The requests for known kernels."""
        return [self.request("POST", "/v1/kernels", {"gemm": str(g), "device": DEVICE.key}) for g in problems]


@contextmanager
def server(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server process on a data folder, with ``settings`` as variables of its environment."""
    with server_process("benchmarks.service_speed.server", folder, settings) as told:
        headers = {"Authorization": f"Bearer {told['key']}", "Content-Type": "application/json"}
        yield Server(told["port"], told["pid"], headers)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options of all measurements."""
    made = command.parser(description, "--commit")
    made.add_argument("--connections", type=int, default=32)
    made.add_argument("--turns", type=int, default=10)
    made.add_argument("--seconds", type=float, default=2.0, help="of one turn")
    made.add_argument("--out", type=Path, help="the results file to write; rows of other figures stay in it")
    return made


def alternate(
    port: int, turn_of: Callable[[int], Turn], options: argparse.Namespace, *, turns: int | None = None
) -> TurnLists:
    """Turns of ours and of the bare route at ``port``, in an order drawn anew for every round; the first of each is not
    kept. As many as the options say where ``turns`` does not."""
    bare = [request("GET", BARE, {})]
    seeds, bare_seeds = itertools.count(), itertools.count()
    blocks = {
        "ours": lambda: [turn_of(next(seeds))],
        "bare": lambda: [drive(port, bare, options.connections, options.seconds, seed=next(bare_seeds))],
    }
    measured = rounds.alternate(blocks, rounds.FixedRounds(1 + (options.turns if turns is None else turns)))
    return measured["ours"][1:], measured["bare"][1:]


def asked(
    port: int, requests: Sequence[bytes], options: argparse.Namespace, *, bare_port: int | None = None
) -> TurnLists:
    """Turns in which these requests are sent, drawn at random; the bare route may be another server's."""

    def turn_of(turn: int) -> Turn:
        return drive(port, requests, options.connections, options.seconds, seed=turn)

    return alternate(port if bare_port is None else bare_port, turn_of, options)


class Figures:
    """The rows of one run, told and written into the results file, where one was named, as they come; rows of other
    figures stay there."""

    @classmethod
    @contextmanager
    def run(cls, options: argparse.Namespace) -> Iterator[tuple[Figures, Path]]:
        """The figures and a data folder for one run."""
        figures = cls(options)
        with tempfile.TemporaryDirectory(prefix="tirgemm-service-") as folder:
            yield figures, Path(folder)

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._about = environment(detect_device(getattr(options, "device", "cpu")), ROOT, options.commit)
        self._rows: list[dict[str, Any]] = []

    def add(self, figure: str, measured: TurnLists, **about: Any) -> None:
        same = {"connections": self._options.connections, "turn_seconds": self._options.seconds}
        row = document.row_of(figure, same | about, *measured) | measured_at(self._about, None)
        print(f"{figure}: {row['per_second']:.0f} a second, p99 {row['p99_ms']:.1f} ms, share {row['share']:.2f}")
        self._rows.append(row)
        self._save()

    def _save(self) -> None:
        path: Path | None = self._options.out
        if path is None:
            return
        mine = {row["figure"] for row in self._rows}
        others = [row for row in load(path)["rows"] if row["figure"] not in mine] if path.is_file() else []
        write(path, figures_document(document.SUITE, self._about, [*others, *self._rows]))
