"""``proofs.json``: how often each proof of the service was run and what went wrong, by the commit and time of the last
run."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tirgemm.bench.results import environment, figures_document, load, measured_at, write
from tirgemm.detect import device as detect_device

ROOT = Path(__file__).resolve().parents[2]
SUITE, FILE = "proofs", "proofs.json"
# Sentences that are kept of one proof; their number is exact.
MAX_FAILURES = 20


class ProofsFile:
    """A results file of proofs, which goes on with the rows that the file has and is written after each run, so that it
    is whole at any time. ``fresh``: the first run of a proof begins its row anew; until then the file keeps the old
    one."""

    def __init__(self, path: Path, *, commit: str | None = None, fresh: bool = False) -> None:
        self.path = path
        self._about = environment(detect_device("cpu"), ROOT, commit)
        self._counting = threading.Lock()
        self.rows: dict[str, dict[str, Any]] = {}
        if path.exists():
            self.rows = {row["proof"]: row for row in load(path)["rows"]}
        self._outdated = set(self.rows) if fresh else set[str]()

    def count(self, proof: str, wrong: Sequence[str], seconds: float, runs: int = 1, **about: Any) -> None:
        """Note ``runs`` more of a proof, and what went wrong in them; ``about`` is kept with it. Any thread may."""
        with self._counting:
            self._count(proof, wrong, seconds, runs, about)

    def _count(self, proof: str, wrong: Sequence[str], seconds: float, runs: int, about: dict[str, Any]) -> None:
        if proof in self._outdated:
            self._outdated.remove(proof)
            del self.rows[proof]
        row = self.rows.get(proof, {"runs": 0, "failed": 0, "failures": [], "seconds": 0.0})
        failures = [*row["failures"], *wrong][:MAX_FAILURES]
        failed = row["failed"] + (min(runs, len(wrong)) if wrong else 0)
        self.rows[proof] = {
            "proof": proof,
            "status": "failed" if failed else "held",
            "runs": row["runs"] + runs,
            "failed": failed,
            "failures": failures,
            "seconds": round(row["seconds"] + seconds, 1),
            **about,
            **measured_at(self._about, None),
        }
        write(self.path, figures_document(SUITE, self._about, [self.rows[name] for name in sorted(self.rows)]))
