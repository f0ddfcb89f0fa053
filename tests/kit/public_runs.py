"""The public training logs that detection is measured on.

They are in `$TRIMTAB_DATA`, or in `../shared/data` beside the checkout; `scripts/data` gets them.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trimtab.core.block import Block
from trimtab.readers import read_log

_BESIDE = Path(__file__).resolve().parents[3] / "shared" / "data"
DATA = Path(os.environ.get("TRIMTAB_DATA") or _BESIDE)
MISSING = f"the public runs are not in {DATA}: scripts/data fetches them, TRIMTAB_DATA says where"
RUNS = DATA / "runs"
SPLITS = ("tune", "held-out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One event that the annotator marked."""

    kind: str
    start: int
    peak: int
    end: int
    """The last step of the log if the annotator marked no end."""
    outcome: str | None
    confidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """One labelled series."""

    name: str
    split: str
    label: str
    tags: tuple[str, ...]
    labels: tuple[Label, ...]
    block: Block

    @property
    def is_every_step(self) -> bool:
        """Whether every optimizer step was logged."""
        steps = self.block.step
        return len(steps) > 1 and int(steps[-1] - steps[0]) < 1.5 * len(steps)


def real_runs() -> Iterator[RealRun]:
    """Every labelled series, read by trimtab's reader."""
    labels = json.loads((RUNS / "labels.json").read_text(encoding="utf-8"))["series"]
    for name, entry in sorted(labels.items()):
        block = read_log(RUNS / f"{name}.csv").block
        yield RealRun(
            name=name,
            split=entry["split"],
            label=entry["label"],
            tags=tuple(entry["tags"]),
            labels=tuple(_label(event, int(block.step[-1])) for event in entry["events"]),
            block=block,
        )


def _label(event: dict[str, object], last_step: int) -> Label:
    start = int(str(event["start_step"]))
    peak, end = event.get("peak_step"), event.get("end_step")
    return Label(
        kind=str(event["kind"]),
        start=start,
        peak=start if peak is None else int(str(peak)),
        end=last_step if end is None else int(str(end)),
        outcome=None if event.get("outcome") is None else str(event["outcome"]),
        confidence=str(event.get("confidence", "low")),
    )
