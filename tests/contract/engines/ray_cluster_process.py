"""A Ray cluster of several nodes in a process of its own, which can be killed with its head.

usage: python -m tests.contract.engines.ray_cluster_process PORT NODES
prints a line once such a cluster is there, which ends when stdin is closed
"""

from __future__ import annotations

import subprocess
import sys

from verification.service.processes import END_SECONDS, ROOT, await_exit, descendants, kill
from verification.service.ray_cluster import running_cluster


class ClusterProcess:
    """A cluster in a process of its own: whoever looks after one from within its process dies with its head.

    It is there once this is made, at the address ``127.0.0.1:port``, and again after every ``start``.
    """

    def __init__(self, port: int, nodes: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._command = [sys.executable, "-m", __name__, str(port), str(nodes)]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise AssertionError(f"there is no Ray cluster at {self.address}")

    def kill(self) -> list[int]:
        """SIGKILL to all of its processes, the head's too: their ids."""
        ended = [self._process.pid, *descendants(self._process.pid)]
        for pid in ended:
            kill(pid)
        self.close()
        return ended

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        await_exit(self._process, END_SECONDS)


def main(port: str, nodes: str) -> None:
    with running_cluster(int(nodes), int(port)) as cluster:
        print(cluster.address, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
