"""Texts to copy that fetch one kernel of a service: in Python, on a shell, and over plain HTTP."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from tirgemm._client.api_key import VARIABLE
from tirgemm.tuning.records import KernelRecord


@dataclass(frozen=True, slots=True)
class Snippet:
    """A text to copy, and what it is for."""

    name: str
    text: str


def snippets(record: KernelRecord, url: str, key: str, *, signed_in: bool) -> tuple[Snippet, ...]:
    """How to get the artifact of ``record`` from the service at ``url``, which signs with ``key``: each has the line
    that trusts that key. ``signed_in``: it takes an API key, which the first two read from the environment."""
    sha256, file = record.artifact_sha256, f"{url}/v1/artifacts/{record.artifact_sha256}"
    python = (
        "import tirgemm\n\n"
        f'client = tirgemm.Client("{url}")\n'
        f'client.trust_server("{key}")  # compare it with whoever runs the service\n'
        f'kernel = tirgemm.load(client.artifact("{sha256}"), trust=client.trust)\n'
    )
    gemm, device = shlex.quote(str(record.gemm)), shlex.quote(record.device.key)
    accepts = " --unverified" if record.role == "unverified" else ""
    shell = (
        f"tirgemm trust add {url} {key}  # compare it with whoever runs the service\n"
        f"tirgemm get {gemm} --url {url} --device {device} --regime {record.regime}{accepts} "
        "--output kernel.tirgemm\n"
    )
    header = f' -H "Authorization: Bearer ${VARIABLE}"' if signed_in else ""
    http = (
        f"curl -fsS{header} -o kernel.tirgemm {file}\n"
        f"tirgemm trust add {key}  # compare it with whoever runs the service\n"
        "tirgemm show kernel.tirgemm  # whose it is, and what is in it; nothing of it is run\n"
    )
    return Snippet("Python", python), Snippet("Shell", shell), Snippet("HTTP", http)
