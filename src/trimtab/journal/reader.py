"""Reads a journal: all its segments into one run, and everything that is wrong with them.

A journal can be read while it is written. A segment that is sealed meanwhile is found under its new
name; damage costs what was damaged and nothing else.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trimtab.core.block import Block, Event, IntArray
from trimtab.core.errors import JournalError
from trimtab.core.run import Run, RunFacts
from trimtab.core.sink import RUN_STATUS, RunStatus
from trimtab.core.text import printable
from trimtab.journal.assembly import Progress, assemble
from trimtab.journal.checkpoints.index import CheckpointIndex
from trimtab.journal.directory import RunDirectory
from trimtab.journal.lines import Damage, DamageKind
from trimtab.journal.news import read_news
from trimtab.journal.notes import read_notes
from trimtab.journal.segments import open_segments

JOURNAL = "journal"
"""The format of a run that was read from its journal."""

AUDIT_EVENT = "resume audit"
"""The event of a resume audit; its fact "findings" is a list of sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRun(Run):
    """A run as its journal holds it, and what the journal has lost."""

    directory: RunDirectory
    damage: tuple[Damage, ...]
    dropped: int
    """Records that the writer reported as dropped."""
    ended: str | None
    """How the writer ended; None while it runs or if it was killed."""
    schema: int
    """The highest schema among the segments."""


def read_journal(
    run: RunDirectory,
    signals: Collection[str] | None = None,
    progress: Progress | None = None,
    *,
    find_damage: bool = True,
) -> JournalRun:
    """Read a run from its journal, or only these signals; what is damaged or lost is noted.

    The columns of a journal that does not fit into memory stay in its files. Each value is still
    read once, to report what is damaged, unless `find_damage` is false.
    """
    segments, summary = open_segments(run)
    events = sorted([*summary.events, *read_notes(run)], key=lambda event: event.tick)
    block, damage = assemble(
        segments,
        signals,
        events=events,
        qualities=summary.qualities,
        progress=progress,
        find_damage=find_damage,
    )
    lost = _lost_ticks(block.tick, summary.drops)
    all_damage = (*summary.damage, *damage, *lost)
    notes = [*_notes(all_damage, summary.dropped), *_audit_notes(block.events)]
    notes += _ending_notes(run, summary.ended, block)
    try:
        manifest = run.read_manifest()
        facts = RunFacts.from_manifest(
            {**manifest, "link": manifest.get("link") or run.tracker_link()}
        )
        facts = replace(facts, checkpoints=_checkpoints(run))
    except JournalError as error:  # the records are worth judging without it
        facts = RunFacts()
        notes.append(str(error))
    return JournalRun(
        block=block,
        format=JOURNAL,
        path=run.root,
        facts=facts,
        notes=tuple(notes),
        directory=run,
        damage=all_damage,
        dropped=summary.dropped,
        ended=summary.ended,
        schema=summary.schema,
    )


def _checkpoints(run: RunDirectory) -> dict[int, str]:
    """Return the checkpoints of a run whose files and values are sound, by their step."""
    try:
        entries = CheckpointIndex(run.home).entries
    except OSError:
        return {}
    return {
        entry.step: Path(entry.facts.source).name or entry.folder
        for entry in entries
        if not entry.damage and not entry.facts.fault
    }


def _notes(damage: Iterable[Damage], dropped: int) -> Iterator[str]:
    for one in damage:
        yield f"{one.file}: {one.sentence}"
    if dropped:
        yield (
            f"{dropped:,} records are missing: the disk was too slow or full, and the writer "
            "dropped them"
        )


STOPPED_BY_HAND = ("raised KeyboardInterrupt", "raised SystemExit")


def _audit_notes(events: Iterable[Event]) -> Iterator[str]:
    for event in events:
        if event.kind == AUDIT_EVENT and isinstance(found := event.facts.get("findings"), list):
            yield from (f"resume at step {event.step}: {sentence}" for sentence in found)


def _ending_notes(run: RunDirectory, ended: str | None, block: Block) -> Iterator[str]:
    """Yield how a run ended: by an error, or as its observer saw it if it wrote no end itself."""
    ticks = block.tick
    if ended and ended.startswith("raised ") and ended not in STOPPED_BY_HAND and len(ticks):
        yield f"the run {ended} after step {block.step[-1]}"
    said = [event for event in read_news(run) if event.kind == RUN_STATUS][-1:]
    for event in said:
        is_last = len(ticks) and event.tick > ticks[-1]
        if ended is None and is_last and event.facts.get("status") != RunStatus.RUNNING:
            how = printable(str(event.facts.get("how"))[:200])
            yield f"the run {event.facts.get('status')} after step {event.step}: {how}"


def _lost_ticks(ticks: IntArray, drops: Iterable[tuple[int, int]]) -> Iterator[Damage]:
    """Yield the ticks before and between the records that no drop accounts for."""
    # Ticks count from 0 without gaps, so of a whole journal nothing needs to be searched.
    if not len(ticks) or ticks[-1] == len(ticks) - 1:
        return
    holes = np.flatnonzero(np.diff(ticks, prepend=-1) > 1)
    known = sorted(drops)
    for hole in holes:
        first = int(ticks[hole - 1]) + 1 if hole else 0
        last = int(ticks[hole]) - 1
        for number in range(max(bisect_right(known, (first,)) - 1, 0), len(known)):
            drop = known[number]
            if drop[0] > last:
                break
            if drop[1] >= first:
                if drop[0] > first:
                    yield _lost(first, drop[0] - 1)
                first = drop[1] + 1
        if first <= last:
            yield _lost(first, last)


def _lost(first: int, last: int) -> Damage:
    return Damage(
        kind=DamageKind.LOST_TICKS,
        file="journal",
        sentence=f"the {last - first + 1} records of ticks {first} to {last} are lost",
        ticks=(first, last),
    )
