"""A run that stands still says where, on every rank."""

import logging
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.kit import forked
from tests.kit.launch import run_ranks
from tests.kit.tiny import batches, make_model
from tests.kit.user_loop import events_of, watching
from torch.nn.parallel import DistributedDataParallel

from trimtab.core.config import Config, LiveConfig
from trimtab.journal import RunDirectory
from trimtab.journal.exit_request import ExitRequest, RunExit
from trimtab.live.loop.hang_watchdog import HangWatchdog

QUICK = Config(live=LiveConfig(hang_seconds=0.5))


def stand_still(rank: int, folder: Path) -> int:
    """The second rank sleeps in the middle of the run; the first one waits for it."""
    model = DistributedDataParallel(make_model())
    with watching(folder / "run", model=model, config=QUICK) as run:
        for step, batch in enumerate(batches(8, seed=rank)):
            if rank == 1 and step == 4:
                time.sleep(1.5)
            run.step(batch, clip=1.0)
    return 8


@pytest.mark.filterwarnings("ignore")
def test_every_rank_writes_its_stacks_and_an_observed_run_goes_on(tmp_path: Path) -> None:
    assert run_ranks(stand_still, 2, tmp_path) == [8, 8]
    run = RunDirectory(tmp_path / "run")
    waiting, sleeping = (
        (run.home / "hang" / f"rank-{rank:05}.txt").read_text() for rank in range(2)
    )
    assert "in stand_still" in waiting
    assert "in backward" in waiting or "all_reduce" in waiting
    assert "in backward" not in sleeping
    event = events_of(tmp_path / "run", "hang")[0]
    assert event.facts["seconds"] >= 0.5
    assert "in stand_still" in event.facts["stack"]


def test_a_run_that_moves_or_has_ended_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR), watching(tmp_path, config=QUICK) as run:
        for batch in batches(6):
            time.sleep(0.2)
            run.step(batch)
    time.sleep(1.0)
    assert not caplog.records
    assert not (RunDirectory(tmp_path).home / "hang").exists()


@pytest.mark.parametrize("records", [False, True])
def test_an_evaluation_is_progress_and_one_that_hangs_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, records: bool
) -> None:
    """With `model.eval()` any code that runs counts; else only what is recorded."""
    with caplog.at_level(logging.ERROR), watching(tmp_path, config=QUICK) as run:
        run.step(batches(1)[0])
        run.model.train(records)
        with torch.no_grad():
            for batch in batches(12, seed=2):
                run.model(batch)
                time.sleep(0.05)
                time.sleep(0.05)
                if records:
                    run.guard.record(eval_loss=1.0)
        assert not caplog.records
        time.sleep(1.0)
        assert "has stood still" in caplog.text


def test_a_recovering_run_ends_with_75_and_leaves_its_request(tmp_path: Path) -> None:
    script = """
        import sys, time, pathlib
        from types import SimpleNamespace as Part
        from trimtab.journal import RunDirectory
        from trimtab.live.loop.hang_watchdog import HangWatchdog

        monitor = Part(
            next_step=7,
            num_calls=7,
            is_closed=False,
            sync=Part(num_exchanges=7),
            recorder=Part(is_recording=True, journal=Part(event=lambda *args, **facts: None)),
        )
        run = RunDirectory(pathlib.Path(sys.argv[1]))
        HangWatchdog(run, 0, 0.2, monitor, Part(training=True), ends_run=True)
        time.sleep(60)
    """
    done = forked.run("-c", textwrap.dedent(script), tmp_path)
    assert done.returncode == RunExit.RELAUNCH
    request = ExitRequest.read(RunDirectory(tmp_path).home)
    assert request is not None
    assert (request.code, request.step) == (RunExit.RELAUNCH, 7)


def test_a_disk_that_cannot_be_written_hides_no_hang(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sync, recorder = SimpleNamespace(num_exchanges=3), SimpleNamespace(is_recording=False)
    monitor: Any = SimpleNamespace(
        next_step=3, num_calls=3, is_closed=False, recorder=recorder, sync=sync
    )
    (tmp_path / "trimtab").write_text("a file where the folder should be")
    with caplog.at_level(logging.ERROR):
        HangWatchdog(RunDirectory(tmp_path), 2, 0.1, monitor, make_model(), ends_run=False)
        time.sleep(0.4)
        monitor.is_closed = True
        time.sleep(0.1)
    assert "rank 2 has stood still" in caplog.text
    assert "its stacks cannot be written" in caplog.text
