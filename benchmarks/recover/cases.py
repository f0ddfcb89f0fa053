"""The faults, by the clock they go by, and the runs that look like a fault and are none."""

import dataclasses
from dataclasses import dataclass

from benchmarks.lab_protect import ShortOverflow
from trimtab.lab.corpus.data import Batch
from trimtab.lab.corpus.text import Source
from trimtab.lab.faults.data_faults import MixShift
from trimtab.lab.scenarios.catalogue import kind_named
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import Intervention, RunParts, change_batches
from trimtab.lab.trainer.run_clock import Clock


class GarbageShift(MixShift):
    """From some step on, garbage."""

    sources = (Source.GARBAGE,)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedBatch(Batch):
    """A batch that names its source."""

    source: str


class GarbageSource(GarbageShift):
    """From some step on, two batches of three are garbage, and batches name their source."""

    def attach(self, parts: RunParts) -> LabRun:
        """Name the source of every batch."""
        run = super().attach(parts)  # what it changes is decided by `covers`

        def name(step: int, batch: Batch) -> Batch:
            source = "garbage" if self.covers(step) else "corpus"
            fields = {field.name: getattr(batch, field.name) for field in dataclasses.fields(batch)}
            return NamedBatch(**fields, source=source)

        return change_batches(run, name)

    def covers(self, step: int) -> bool:
        """Whether the batch of a step is garbage."""
        return super().covers(step) and step % 3 != 0


STEPS = 440
"""The onset lies between steps 185 and 273."""


STOPPED = "stopped 76"
"""How a run ends whose cause no remedy can remove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of the table."""

    kind: str
    by: Clock | None = None
    """None is the clock of its kind."""
    severity: float | None = None
    make: type[Intervention] | None = None
    label: str = ""
    is_healthy: bool = False
    """Whether nothing is to be done: its twin is the same run without a guard."""
    is_exact: bool = False
    """Whether its remedy is a restore without skip: then the final bits are those of the twin."""
    is_late: bool = False
    """Whether it is measured after the others: it cannot be recovered from, or does no harm."""
    expected: str = ""
    """What must happen in every run of a late case: an act, or how the run ends."""

    @property
    def name(self) -> str:
        """What selects it on the command line."""
        by = f" {self.by}" if self.by is not None else ""
        return f"{self.label or self.kind}{by}"

    def scenario(self, seed: int) -> Scenario:
        """The run with the fault."""
        return Scenario(kind=self.kind, seed=seed, steps=STEPS, severity=self.severity)

    def intervention(self, seed: int) -> Intervention | None:
        """The fault itself; None for a clean run."""
        scenario = self.scenario(seed)
        made = scenario.intervention()
        if made is None:
            return None
        if self.make is not None:
            made = self.make(onset=made.onset, severity=made.severity, seed=seed)
        return dataclasses.replace(made, goes_by=self.by)

    @property
    def twin_name(self) -> str:
        """The clean run that it is compared with: shared by the faults of the same base."""
        return self.name if self.is_healthy else f"twin-{self.scenario(0).required_base}"

    @property
    def clock(self) -> Clock:
        """What it goes by."""
        return self.by or kind_named(self.kind).clock


FAULTS = (
    Case(kind="F13w", is_exact=True),
    Case(kind="F05", by=Clock.TICK),
    Case(kind="F02"),
    Case(kind="F12", severity=1.0, label="F12-8"),
    Case(kind="F12", severity=0.0, label="F12-1"),
    Case(kind="F18"),
    Case(kind="F06"),
    Case(kind="F23", by=Clock.TICK, is_exact=True),
    Case(kind="F08", by=Clock.TICK, is_exact=True),
    Case(kind="F19", by=Clock.TICK, is_exact=True),
    Case(kind="F05", by=Clock.STEP),
    Case(kind="F08", by=Clock.STEP, is_exact=True),
    Case(kind="F23", by=Clock.STEP, is_exact=True),
    Case(kind="F19", by=Clock.STEP, is_exact=True),
    Case(kind="F07", by=Clock.TICK, is_exact=True),
    Case(kind="F13"),
    Case(kind="F24"),
    Case(kind="F11", make=ShortOverflow, by=Clock.TICK, label="F11-3"),
    Case(
        kind="F04",
        severity=0.95,
        make=GarbageShift,
        label="F04-garbage",
        is_late=True,
        expected=STOPPED,
    ),
    Case(
        kind="F04",
        severity=0.95,
        make=GarbageSource,
        label="F04-source",
        is_late=True,
        expected="quarantine",
    ),
    Case(kind="F14", is_late=True, expected="stopped 75"),
    Case(kind="F11", is_late=True, expected=STOPPED),
    Case(kind="natural-fp16", is_late=True, expected=STOPPED),
    Case(kind="F21", is_late=True),
    # Adam hardly feels it, but only a person can say which loss is meant (docs/recover.md).
    Case(kind="F22", is_late=True, expected=STOPPED),
    *(
        Case(kind=f"natural-{kind}", is_late=True)
        for kind in ("attention", "post-norm", "init", "warmup")
    ),
)
"""The most important ones first."""

HEALTHY = (
    *(Case(kind=kind, is_healthy=True) for kind in ("clean", "cooldown", "warmup-end")),
    *(Case(kind=kind, is_healthy=True) for kind in ("batch-ramp", "length-change", "mix-switch")),
    *(Case(kind=kind, is_healthy=True) for kind in ("F20", "F01")),
)
