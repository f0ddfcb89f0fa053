"""scan: all shards of a plan, here, in several processes or on a Ray cluster; merge: their sum.

A shard that has its result file is not scanned again, and each shard is added up once. So a scan
that was killed is simply started again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from trimtab.core.errors import CorpusError, MissingExtra
from trimtab.corpus.plan import ScanPlan
from trimtab.corpus.scan_units import scan_shard
from trimtab.corpus.statistics import Statistics
from trimtab.corpus.storing import ScanResult, load_result, save_result

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


RESULT = "corpus.npz"
"""The merged result in the folder of a scan."""

OnShard = Callable[[int, int], None]
"""Called with the number of shards that are done, and of all shards."""


def scan(
    plan: ScanPlan, folder: Path, *, runner: Runner = run_here, on_shard: OnShard | None = None
) -> ScanResult:
    """Scan the shards that have no result yet, and merge all."""
    missing = [index for index in range(plan.num_shards) if not is_done(plan, index, folder)]
    done = plan.num_shards - len(missing)
    for index, statistics in runner(plan, missing):
        save_result(ScanResult.of_shard(plan, index, statistics), shard_file(folder, plan, index))
        done += 1
        if on_shard is not None:
            on_shard(done, plan.num_shards)
    result = merge(shard_file(folder, plan, index) for index in range(plan.num_shards))
    save_result(result, folder / RESULT)
    return result


def scan_one(plan: ScanPlan, index: int, folder: Path) -> bool:
    """Scan one shard of an array of jobs; False if its result is there already."""
    if is_done(plan, index, folder):
        return False
    result = ScanResult.of_shard(plan, index, scan_shard(plan, index))
    save_result(result, shard_file(folder, plan, index))
    return True


def shard_file(folder: Path, plan: ScanPlan, index: int) -> Path:
    """The result file of a shard."""
    return folder / f"shard-{index:05d}-of-{plan.num_shards:05d}.npz"


def is_done(plan: ScanPlan, index: int, folder: Path) -> bool:
    """Whether a shard has a result of this plan; one of a different plan is an error."""
    path = shard_file(folder, plan, index)
    if not path.exists():
        return False
    try:
        result = load_result(path)
    except CorpusError:
        return False  # damaged by a disk: scan it again
    if result.digest != plan.digest:
        raise CorpusError(
            f"{path} is of other files or settings; choose an empty folder, or delete it"
        )
    return result.shards == (index,)


def merge_folder(folder: Path) -> ScanResult:
    """Merge the shards in a folder, and keep the result there."""
    files = sorted(folder.glob("shard-*-of-*.npz"))
    if not files:
        raise CorpusError(f"{folder} holds no shards; run `trimtab corpus scan` first")
    result = merge(files)
    save_result(result, folder / RESULT)
    return result


def merge(files: Iterable[Path]) -> ScanResult:
    """Add up the shards of one scan, each once; raises CorpusError if one is missing."""
    first: ScanResult | None = None
    seen: set[int] = set()
    total = Statistics()
    for file in files:
        result = load_result(file)
        first = first or result
        if result.digest != first.digest:
            raise CorpusError(f"{file} is of other files or settings than the shards before it")
        if seen & set(result.shards):
            raise CorpusError(f"{file} holds shards {result.shards}, which were added up before")
        seen |= set(result.shards)
        total.merge(result.statistics)
    if first is None or len(seen) != first.num_shards:
        have = 0 if first is None else first.num_shards
        missing = sorted(set(range(have)) - seen)
        shown = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        raise CorpusError(f"{len(missing)} of {have} shards are missing: {shown}; scan them first")
    total.sort_examples()
    return ScanResult(
        digest=first.digest,
        num_shards=first.num_shards,
        shards=tuple(sorted(seen)),
        files=first.files,
        vocab_size=first.vocab_size,
        counts_only=first.counts_only,
        statistics=total,
    )
