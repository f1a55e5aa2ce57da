"""Random requests over the whole OpenAPI document: schemathesis with all checks against a service with API keys.

schemathesis is no dependency of this project: install it into an environment of its own and name its command.

usage: python -m verification.service.random_requests --schemathesis FOLDER/bin/schemathesis --cases 10000 --out FILE
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tirgemm.errors import InvalidRequest
from verification import command
from verification.service.fuzzed_server import OPEN_WINDOWS
from verification.service.processes import START_SECONDS, server_process
from verification.service.proofs_file import ProofsFile

CONFIG = Path(__file__).with_name("schemathesis.toml")
# Jobs and batches are cancelled by DELETE and there to be looked at afterwards, and the check cannot be left out for
# them alone; that a deleted kernel is gone is shown by tests/service/test_kernels_api.py.
EXCLUDED = "use_after_free"
PROOF = "random requests, schemathesis"
PHASES = ("examples", "coverage", "fuzzing", "stateful")
# Longer than the server lets anybody wait.
REQUEST_SECONDS = 20


@contextmanager
def server(folder: Path, *options: str) -> Iterator[tuple[str, str]]:
    """A fuzzed server with ``options`` on a data folder: its address and an API key of the scope admin."""
    with server_process("verification.service.fuzzed_server", folder, options=options) as told:
        url, key = f"http://127.0.0.1:{told['port']}", str(told["key"])
        # The document is made for the first who asks, which takes long on a busy machine.
        first = urllib.request.Request(f"{url}/openapi.json", headers={"Authorization": f"Bearer {key}"})
        with urllib.request.urlopen(first, timeout=START_SECONDS) as answer:
            answer.read()
        yield url, key


def requested(program: Path, url: str, key: str, examples: int, seed: int) -> tuple[int, list[str]]:
    """How many cases schemathesis sent, with about ``examples`` of each operation, and what it reports."""
    with tempfile.TemporaryDirectory(prefix="tirgemm-schemathesis-") as folder:
        report = Path(folder) / "report.json"
        options = [
            "--checks",
            "all",
            "--exclude-checks",
            EXCLUDED,
            "--phases",
            ",".join(PHASES),
            "--max-examples",
            str(examples),
        ]
        options += ["--seed", str(seed), "--request-timeout", str(REQUEST_SECONDS), "--continue-on-failure"]
        options += ["--header", f"Authorization: Bearer {key}", "--report-json-path", str(report), "--no-color"]
        command = [str(program), "--config-file", str(CONFIG), "run", f"{url}/openapi.json", *options]
        try:
            ended = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
        except OSError as error:
            raise InvalidRequest(f"{program} is no command of schemathesis: {error.strerror}") from error
        print(ended.stdout, flush=True)
        if not report.is_file():
            raise InvalidRequest(f"{program} wrote no report; it ended with exit code {ended.returncode}")
        return told(json.loads(report.read_text()), ended.returncode)


def told(report: dict[str, Any], code: int) -> tuple[int, list[str]]:
    """The number of cases of a report and a sentence for each failure; another where it failed or ended without any."""
    cases = report["test_cases"]
    failures = [
        f"{one['code']} {one['title']}: {one['count']} at {', '.join(one['operations'])}" for one in report["failures"]
    ]
    failures += [f"an error of the run itself: {json.dumps(one)[:300]}" for one in report["errors"]]
    if not failures and (code or not report["complete"] or cases["errored"]):
        failures.append(
            f"it ended with exit code {code}: {report['stop_reason']}, {cases['errored']} cases with errors"
        )
    return int(cases["generated"]), failures


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command.parser(__doc__, "--fresh", "--commit", "--out")
    parser.add_argument("--schemathesis", type=Path, required=True, help="its command")
    parser.add_argument("--cases", type=int, default=10_000, help="to be sent in all, in as many rounds as it takes")
    parser.add_argument("--examples", type=int, default=50, help="of each operation in a round")
    parser.add_argument("--servers", type=int, default=1, help="so many side by side, each with rounds of its own")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10**6, help="of the first round")
    options = parser.parse_args(arguments)
    proofs = ProofsFile(options.out, commit=options.commit, fresh=options.fresh)
    lock, seeds = threading.Lock(), iter(range(options.seed, options.seed + options.cases))
    sent, failures = 0, list[str]()

    def send() -> None:
        nonlocal sent
        with (
            tempfile.TemporaryDirectory(prefix="tirgemm-fuzzed-") as folder,
            server(Path(folder), OPEN_WINDOWS) as (url, key),
        ):
            while sent < options.cases and not failures:
                with lock:
                    seed = next(seeds)
                began = time.monotonic()
                cases, wrong = requested(options.schemathesis, url, key, options.examples, seed)
                with lock:
                    if cases:  # else nothing was tried
                        proofs.count(PROOF, wrong, time.monotonic() - began, runs=cases)
                    sent += cases
                    failures.extend(wrong)

    with ThreadPoolExecutor(options.servers) as threads:
        for future in [threads.submit(send) for _ in range(options.servers)]:
            future.result()
    print(f"{sent} cases: {'; '.join(failures) or 'no failure'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(command.run(main))
