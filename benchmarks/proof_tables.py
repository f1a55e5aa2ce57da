"""Table of ``proofs.json``, and what can be wrong in that file."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.tables import TableText, of_file, repeated, table
from tirgemm.bench.results import Document
from verification.service.proofs_file import FILE, SUITE


def faults(document: Document) -> Iterator[str]:
    """What is wrong: proofs that are there twice or were never run, statuses that the failures do not give."""
    yield from repeated(row["proof"] for row in document["rows"])
    for row in document["rows"]:
        proof = row["proof"]
        if row["runs"] < 1 or not 0 <= row["failed"] <= row["runs"]:
            yield f"{proof} has {row['runs']} runs of which {row['failed']} failed"
        if (row["status"] == "failed") != bool(row["failed"]) or bool(row["failed"]) != bool(row["failures"]):
            yield f"{proof} is {row['status']} with {row['failed']} failed runs and {len(row['failures'])} failures"


@of_file(FILE, "python -m verification.service.kills")
def proofs(document: Document) -> str:
    """The table of a machine's file."""
    lines = [[row["proof"], f"{row['runs']:,}", f"{row['failed']:,}", row["at"][:10]] for row in document["rows"]]
    about = document["environment"]
    return f"{about['device']}\n\n{table(['proof', 'runs', 'failed', 'last run'], lines, 1)}"


TABLES: dict[str, TableText] = {SUITE: proofs}
