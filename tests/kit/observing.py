"""The observer of a run, in this process or as the child that `watch` starts."""

import time
from pathlib import Path

import pytest

from trimtab.core.config import ShipConfig
from trimtab.core.incidents import Incident
from trimtab.core.sink import RunStatus
from trimtab.journal import RunDirectory
from trimtab.journal.observer_process import OBSERVER_SETTING
from trimtab.observe.liveness import Standing
from trimtab.observe.observed_run import ObservedRun
from trimtab.observe.run_observer import RunObserver
from trimtab.observe.shipping.shipper import Shipper


def observe(run_dir: Path) -> tuple[Incident, ...]:
    """Judge a run to the end of its journal, as its observer would; returns the incidents."""
    observer = RunObserver(RunDirectory(run_dir))
    observer.poll()
    observer.note_standing(Standing(status=RunStatus.ENDED, how=observer.ended or "stopped"))
    found = observer.incidents
    observer.close()
    return found


def run_shipper(
    shipper: Shipper, run: RunDirectory, stall_seconds: float = ShipConfig().stall_seconds
) -> bool:
    """Observe a run and send it until the end; return whether every sink has everything."""
    observed = ObservedRun(run, stall_seconds=stall_seconds)
    shipper.start()
    while shipper.is_alive:
        observed.poll()
        shipper.note_standing(observed.standing)
        time.sleep(0.1)
    observed.close()
    return shipper.close()


@pytest.fixture
def with_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `watch` start an observer, as it does for users."""
    monkeypatch.delenv(OBSERVER_SETTING)
