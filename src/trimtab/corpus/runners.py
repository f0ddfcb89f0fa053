"""Where shards are scanned: here, in processes, or on a Ray cluster. The counting is the same."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from typing import Any

from trimtab.core.errors import MissingExtra
from trimtab.corpus.plan import ScanPlan
from trimtab.corpus.scan_units import scan_shard
from trimtab.corpus.statistics import Statistics

ShardStatistics = tuple[int, Statistics]
Runner = Callable[[ScanPlan, Sequence[int]], Iterable[ShardStatistics]]
"""Takes a plan and the shards to scan; yields each with its statistics, in any order."""

_WAITING = 2
"""Shards per worker that are handed out: one at work, one waiting. Results are kept in memory only
until they are written."""


def run_here(plan: ScanPlan, shards: Sequence[int]) -> Iterator[ShardStatistics]:
    """One shard after the other in this process."""
    for index in shards:
        yield index, scan_shard(plan, index)


def run_processes(num_processes: int) -> Runner:
    """Several processes on this machine."""

    def run(plan: ScanPlan, shards: Sequence[int]) -> Iterator[ShardStatistics]:
        # Spawned: a fork would copy the threads of whatever the caller has imported.
        with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
            left = iter(shards)
            running: dict[Future[Statistics], int] = {}
            while True:
                for index in islice(left, _WAITING * num_processes - len(running)):
                    running[pool.submit(scan_shard, plan, index)] = index
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()

    return run


def run_ray(address: str = "auto") -> Runner:
    """Tasks on a Ray cluster: at an address, the running one ("auto"), or a new one ("local").

    Every node needs trimtab and the files, at the same paths.
    """

    def run(plan: ScanPlan, shards: Sequence[int]) -> Iterator[ShardStatistics]:
        try:
            import ray
        except ModuleNotFoundError as error:
            raise MissingExtra('Ray is not installed; run: pip install "trimtab[ray]"') from error
        mine = not ray.is_initialized()
        if mine:
            ray.init(address=address, log_to_driver=False)
        try:
            yield from _ray_tasks(ray, plan, shards)
        finally:
            if mine:
                ray.shutdown()

    return run


def _ray_tasks(ray: Any, plan: ScanPlan, shards: Sequence[int]) -> Iterator[ShardStatistics]:
    task = ray.remote(scan_shard)
    shared = ray.put(plan)
    left = iter(shards)
    running: dict[Any, int] = {}
    while True:
        # The cluster may grow while it works.
        workers = max(int(ray.cluster_resources().get("CPU", 1)), 1)
        for index in islice(left, max(_WAITING * workers - len(running), 0)):
            running[task.remote(shared, index)] = index
        if not running:
            return
        done, _ = ray.wait(list(running))
        for reference in done:
            yield running.pop(reference), ray.get(reference)
