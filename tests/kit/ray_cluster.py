"""A real Ray cluster of several nodes on loopback, each with one core."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_SECONDS = 240.0
_PATIENCE = {
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_health_check_initial_delay_ms": "60000",
    "RAY_health_check_timeout_ms": "60000",
}
"""On a busy machine a node takes minutes to start; by default Ray gives up after 30 seconds."""


class RayCluster:
    """The nodes of a cluster, as processes of this one."""

    def __init__(self, address: str, nodes: list[subprocess.Popen[bytes]]) -> None:
        self.address = address
        self._nodes = nodes

    def kill_node(self, index: int) -> None:
        """Kill a node with all its workers."""
        os.killpg(self._nodes[index].pid, signal.SIGKILL)
        self._nodes[index].wait()

    def close(self) -> None:
        """Kill what is left."""
        for index, node in enumerate(self._nodes):
            if node.poll() is None:
                self.kill_node(index)


@contextmanager
def ray_cluster(num_nodes: int = 2) -> Iterator[RayCluster]:
    """Start a head and further nodes with `ray start`, and wait until all are there."""
    import ray

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"127.0.0.1:{port}"
    ray_command = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--num-cpus=1"]
    ray_command += ["--node-ip-address=127.0.0.1", "--object-store-memory=200000000"]
    ray_command += ["--disable-usage-stats"]
    head = [*ray_command, "--head", f"--port={port}", "--include-dashboard=false"]
    further = [*ray_command, f"--address={address}"]
    cluster = RayCluster(address, [_start(head)])
    try:
        _wait(lambda: _is_open(port))
        cluster._nodes += [_start(further) for _ in range(num_nodes - 1)]
        _wait(lambda: _connect(address))
        _wait(lambda: sum(bool(node["Alive"]) for node in ray.nodes()) == num_nodes)
        yield cluster
    finally:
        ray.shutdown()
        cluster.close()


def _connect(address: str) -> bool:
    """Whether the head is ready for a driver, which takes longer than its port to open."""
    import ray

    try:
        ray.init(address=address, log_to_driver=False)
    except (ConnectionError, RuntimeError):
        return False
    return True


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    quiet = subprocess.DEVNULL
    environment = {**os.environ, **_PATIENCE}
    return subprocess.Popen(
        command, stdout=quiet, stderr=quiet, start_new_session=True, env=environment
    )


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _wait(is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_ready():
        if time.monotonic() > deadline:
            raise TimeoutError("the Ray cluster did not start")
        time.sleep(0.2)
