"""Measure how long the service's pages take to answer a browser, with many kernels in the database, and its lists.

A real server process on a temporary SQLite database; one connection, which asks for one page after the other. Scripts,
style sheets and pictures are not asked for: a browser keeps them. What a page shows is the most that it may: a batch of
1,000 problems, a job of 4,096 candidates, the longest machine code; explanations and code are asked for once before, as
they are kept. The lists are of 1,000 kernels each, drawn from all of them, more than the server keeps in memory.

usage: python -m benchmarks.service_speed.pages [--kernels 100000] [--out FILE]     from the root of the repository
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import httpx

from benchmarks.service_speed.page_addresses import (
    ANSWER_SECONDS,
    CANDIDATES,
    addresses,
    ask_for_model,
    store_compiled,
    store_job,
)
from benchmarks.service_speed.stored_kernels import gemms, store_kernels
from benchmarks.service_speed.turns import Figures, Server, asked, parser, server
from verification.command import run

# Kernels of a list, the most that there may be.
LISTED = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    problems = gemms(options.kernels)
    with Figures.run(options) as (figures, folder):
        store_kernels(folder, problems)
        compiled, job = store_compiled(folder), store_job(folder, options.candidates)
        with server(folder) as service:
            url, headers = f"http://127.0.0.1:{service.port}", service.headers | {"Accept": "text/html"}
            listed = httpx.get(f"{url}/v1/kernels?limit=4", headers=service.headers, timeout=ANSWER_SECONDS)
            kernels = [each["id"] for each in listed.raise_for_status().json()["kernels"] if each["role"] == "tuned"]
            model = ask_for_model(service, problems)
            for shown, page in addresses(kernels, compiled, job, model, problems[0].n).items():
                answer = httpx.get(url + page, headers=headers, timeout=ANSWER_SECONDS).raise_for_status()
                asking = [service.request("GET", page).replace(b"\r\n", b"\r\nAccept: text/html\r\n", 1)]
                about = {"kernels": len(problems), "page_bytes": len(answer.content)}
                figures.add(f"page {shown}", asked(service.port, asking, options), **about)
            lists, size = _lists(service, url)
            about, count = {"kernels": len(problems), "page_bytes": size}, min(LISTED, len(problems))
            figures.add(f"list of {count:,} kernels", asked(service.port, lists, options), **about)
    return 0


def _lists(service: Server, url: str) -> tuple[list[bytes], int]:
    """Requests for all pages of the list of kernels, and the bytes of the first."""
    requests: list[bytes] = []
    after: str | None = ""
    size = 0
    while after is not None:
        page = f"/v1/kernels?limit={LISTED}" + (f"&after={after}" if after else "")
        answer = httpx.get(url + page, headers=service.headers, timeout=ANSWER_SECONDS).raise_for_status()
        requests.append(service.request("GET", page))
        size, after = size or len(answer.content), answer.json()["next"]
    return requests, size


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    options = parser(__doc__)
    options.set_defaults(connections=1, turns=3, seconds=1.0)
    options.add_argument("--kernels", type=int, default=100_000, help="kernels in the database")
    options.add_argument("--candidates", type=int, default=CANDIDATES, help="candidates of the running job")
    return options.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(run(main))
