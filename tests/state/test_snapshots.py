"""How much memory snapshots may take, and what they hold."""

import pytest

from trimtab.state.snapshots import ranks_here


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_WORLD_SIZE", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LOCAL_WORLD_SIZE", "8"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "8"),
        ("MPI_LOCALNRANKS", "8"),
        ("SLURM_NTASKS_PER_NODE", "8"),
        ("SLURM_STEP_TASKS_PER_NODE", "8(x1250)"),
        ("SLURM_STEP_TASKS_PER_NODE", "4,8(x16)"),
    ],
)
def test_every_launcher_says_how_many_ranks_share_a_machine(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert ranks_here(10_000) == 8
    assert ranks_here(2) == 2


def test_ranks_that_were_counted_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of Slurm may start eight processes by itself."""
    assert ranks_here(10_000) == 10_000
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "1")
    assert ranks_here(10_000, 8) == 8
