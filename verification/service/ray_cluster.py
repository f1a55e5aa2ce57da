"""Ray clusters of several nodes on this machine, and the loss of a node or of all.

usage: python -m verification.service.ray_cluster PORT NODES
prints a line once such a cluster is there, which ends when stdin is closed
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tirgemm._extras import require
from verification.service.processes import END_SECONDS, ROOT, await_exit, descendants, kill


@contextmanager
def running_cluster(nodes: int, port: int = 0) -> Iterator[Any]:
    """Ray's own ``Cluster`` for tests: a head that builds nothing and so many nodes of one processor; 0: at any port.

    Nodes import this very checkout. Ray takes signals over, so that only the main thread may start one. Raises
    MissingExtra where Ray is not installed.
    """
    require("a Ray cluster", "ray")
    from ray.cluster_utils import Cluster

    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{before or ''}"
    try:
        head = {"num_cpus": 0, "include_dashboard": False, "gcs_server_port": port or None}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            add_nodes(cluster, nodes)
            yield cluster
        finally:
            cluster.shutdown()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def add_nodes(cluster: Any, nodes: int) -> None:
    """Bring the cluster to ``nodes`` nodes beside its head, each of one processor."""
    while len(cluster.worker_nodes) < nodes:
        cluster.add_node(num_cpus=1)


def kill_node(cluster: Any, node: Any) -> list[int]:
    """SIGKILL to Ray's processes on a node: the ids of the processes that have to end with them, as Ray's workers and
    what those started."""
    ended = [pid for _, process in node.live_processes() for pid in (process.pid, *descendants(process.pid))]
    cluster.remove_node(node, allow_graceful=False)
    return ended


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
