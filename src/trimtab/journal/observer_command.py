"""How a training process starts its observer, which it never imports."""

import os
import subprocess
import sys

from trimtab.journal.directory import RunDirectory

_RANK_SETTINGS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""A library in the observer must not take itself for a rank."""

OBSERVER_SETTING = "TRIMTAB_OBSERVER"
"""The environment variable that, set to "off", starts no observer: for test suites and clusters
that run one `trimtab observe` for all runs."""

JUDGE_SECONDS = 120.0
"""How long loading a checkpoint waits for the judgement of the run before it. Chosen: a million
records are judged in 10 s."""


def observer_command(run: RunDirectory, *options: str) -> list[str]:
    """Return the command of an observer; -P keeps the user's files from shadowing its modules."""
    return [sys.executable, "-P", "-m", "trimtab.observe", str(run.root), *options]


def observer_environment() -> dict[str, str]:
    """Return the environment of an observer."""
    given = {name: value for name, value in os.environ.items() if name not in _RANK_SETTINGS}
    return {**given, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def judge_to_end(run: RunDirectory) -> None:
    """Judge a run to the end of its journal; raises OSError or SubprocessError if that fails."""
    subprocess.run(  # noqa: S603 - our own interpreter and module
        observer_command(run, "--once"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=observer_environment(),
        timeout=JUDGE_SECONDS,
        check=True,
    )
