"""Verdicts from the journal of a run: after a crash, and for `trimtab checkpoints`."""

from collections.abc import Sequence

from trimtab.core.config import Config
from trimtab.core.errors import ConfigError, JournalError
from trimtab.diagnosis import RECORDS_PER_BLOCK, make_judge
from trimtab.journal import RunDirectory, read_journal
from trimtab.state.checkpoints.history import RunHistory
from trimtab.state.checkpoints.index import CheckpointEntry
from trimtab.state.checkpoints.verdicts import judge_checkpoints


def judge_from_journal(
    run: RunDirectory, entries: Sequence[CheckpointEntry]
) -> list[CheckpointEntry]:
    """The entries with the verdicts that follow from what the run has journalled."""
    if not run.exists():
        return list(entries)
    block = read_journal(run).block
    judge = make_judge(_config(run)).judge
    for part in block.cut(RECORDS_PER_BLOCK):
        judge.update(part)
    judge.finish()
    history = RunHistory()
    history.update(block)
    return judge_checkpoints(entries, history, judge.incidents)


def _config(run: RunDirectory) -> Config:
    """The settings that the run was watched with; the defaults if they cannot be read."""
    try:
        return Config.from_dict(run.read_manifest().get("config", {}))
    except (ConfigError, JournalError):
        return Config()
