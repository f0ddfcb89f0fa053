"""Ranks as threads: true collectives without processes, for what only depends on the logic."""

import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.testing._internal.distributed import multi_threaded_pg as threaded

TIMEOUT_SECONDS = 60


def run_threads(body: Callable[..., Any], world: int, *args: Any) -> list[Any]:
    """Call `body(rank, *args)` on so many ranks; return what each returned.

    A rank that does not come back in time has been left alone at a meeting: that is a failure.
    """
    _isolate_threads(True)
    threaded._install_threaded_pg()
    store = _distributed_c10d.HashStore()
    results: dict[int, Any] = {}
    errors: dict[int, str] = {}

    def run(rank: int) -> None:
        try:
            dist.init_process_group("threaded", rank=rank, world_size=world, store=store)
            results[rank] = body(rank, *args)
        except BaseException as error:
            errors[rank] = traceback.format_exc()
            threaded.ProcessLocalGroup.exception_handle(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_SECONDS)
        stuck = [rank for rank, thread in enumerate(threads) if thread.is_alive()]
        assert not stuck, f"ranks {stuck} wait for the others; errors: {errors}"
        assert not errors, "\n".join(errors.values())
    finally:
        threaded.ProcessLocalGroup.reset()
        threaded._uninstall_threaded_pg()
        _isolate_threads(False)
    return [results[rank] for rank in range(world)]


def _isolate_threads(on: bool) -> None:
    vars(_distributed_c10d)["_set_thread_isolation_mode"](on)
