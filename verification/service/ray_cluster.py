"""Ray clusters of several nodes on this machine, and the loss of a node."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tirgemm._extras import require
from verification.service.processes import ROOT, descendants


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
