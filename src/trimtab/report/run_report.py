"""RunReport: one run, judged and explained. Every view and file is made from it."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trimtab.core.actions import ActionKind
from trimtab.core.block import Block
from trimtab.core.card import clip
from trimtab.core.findings import Finding, Symptom
from trimtab.core.incidents import Incident, IncidentClass, IncidentTransition
from trimtab.core.jsonable import to_jsonable
from trimtab.core.run import RunFacts
from trimtab.core.signals import LOSS, Quality
from trimtab.core.sink import RunStatus
from trimtab.core.text import clause, counted, printable
from trimtab.explain.diagnosis import Diagnosis
from trimtab.explain.measures import compute_discards, has_never_fallen, lasting_jump

NOTE_OF_ROWS = 'No step column: "step" below is the row number'
"""How the note begins of a log that counts epochs and no steps."""

BAD_ENDS = ("the run raised", f"the run {RunStatus.DIED}")
"""How the notes begin that say so."""

MIN_RECORDS = 64
"""With fewer records, silence says little. Chosen: most detectors need as many to know what is
usual; values that are not finite and explosions are found in any case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run, judged and explained."""

    source: str
    """The log or run directory, as the user named it."""
    format: str
    """The format of the log; "journal" for a run directory."""
    rules: str
    """The name of the rule set that judged."""
    incidents: tuple[Diagnosis, ...]
    """One per incident, in the order of onset."""
    block: Block
    """The records that were judged."""
    facts: RunFacts = field(default_factory=RunFacts)
    """What is known about the run besides its records."""
    transitions: tuple[IncidentTransition, ...] = ()
    """What changed about the incidents, in order, as far back as it is known."""
    notes: tuple[str, ...] = ()
    """What was left out, repaired, lost or guessed on the way, in plain sentences."""
    failures: tuple[str, ...] = ()
    """The notes about plug-ins that failed and were left out."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """The package of each detector that is not trimtab's, by the name of the detector."""
    shows_text: bool = True
    """Whether its files may show the run's data as text (the setting `privacy.text`)."""
    price_per_hour: float | None = None
    """What an hour of the whole job costs, if given."""

    @property
    def verdict(self) -> str:
        """Return what became of the run in one sentence: "Dead since step 900: roll back."."""
        dismissed = len(self.incidents) - len(self.undismissed)
        note = f"; {dismissed} dismissed" if dismissed else ""
        if dismissed and not self.undismissed:
            return f"Nothing to do{note}."
        num_records = self._num_judged
        records, is_short = counted(num_records, "record"), num_records < MIN_RECORDS
        if not self.undismissed:
            if is_short and (jump := lasting_jump(self.block)):
                return f"No incident found, but {jump}; {records} are few{note}."
            if is_short:
                return f"No incident found in {records}; it takes {MIN_RECORDS} to be sure{note}."
            if self.bad_end:
                return f"No incident, but {self.bad_end}{note}."
            if has_never_fallen(self.block):
                return f"No incident, but the loss has not fallen in {records}{note}."
            return f"Healthy: no incident in {records}{note}."
        worst = self.by_severity()[0]
        more = len(self.undismissed) - 1
        if worst.needs_nothing:
            return f"{self._over(worst)}; {clause(worst.action.instruction)}{note}."
        rest = f"; {counted(more, 'more incident')}" if more else ""
        rest += f"; only {records}" if is_short else ""
        return f"{_what(worst)}: {clause(worst.action.instruction)}{rest}{note}{self._rows}."

    def _over(self, worst: Diagnosis) -> str:
        """Return since when all incidents are over, and what the worst of them was."""
        ends = [one.incident.end for one in self.undismissed]
        last = max((end.step for end in ends if end is not None), default=None)
        is_known = last is not None and None not in ends and last > worst.incident.onset.step
        since = f" since step {last:,}" if is_known else ""
        count = counted(len(ends), "incident")
        if len(ends) == 1:
            return f"{count}, over{since}: {worst.in_short}"
        return f"{count}, all over{since}; the worst: {worst.in_short}"

    @property
    def _num_judged(self) -> int:
        """The number of records with a loss, or of all if no loss was recorded."""
        losses = self.block.column(LOSS)
        return int(losses.present.sum()) if losses.recorded else len(self.block)

    @property
    def _rows(self) -> str:
        """What the step in the verdict is, if the log counts none: a row, with its epoch."""
        if not any(note.startswith(NOTE_OF_ROWS) for note in self.notes):
            return ""
        onset = self.by_severity()[0].incident.onset
        later = self.block.column("epoch")[self.block.row_of(onset.tick) :]
        epochs = later.values[later.finite]
        at = f" (row {onset.step:,} = epoch {epochs[0]:.4g})" if len(epochs) else ""
        return f"; steps are row numbers{at}"

    @property
    def bad_end(self) -> str:
        """Return how the run ended if an error or a kill ended it, as its reader notes it."""
        return next((note for note in self.notes if note.startswith(BAD_ENDS)), "")

    @property
    def tone(self) -> str:
        """Return how bad it is, as the verdict is coloured: `good`, `warn` or `alarm`."""
        if all(one.needs_nothing for one in self.undismissed):
            return "good"
        acts = any(one.action.kind is not ActionKind.WAIT for one in self.undismissed)
        return "alarm" if acts else "warn"

    @property
    def judged(self) -> tuple[Incident, ...]:
        """The incidents that nobody has dismissed, without their explanations."""
        return tuple(one.incident for one in self.undismissed)

    @property
    def undismissed(self) -> tuple[Diagnosis, ...]:
        """The incidents that nobody has dismissed, in the order of onset."""
        return tuple(one for one in self.incidents if not one.dismissed)

    @property
    def signals(self) -> dict[str, Quality]:
        """Every recorded signal, with its quality."""
        return {name: self.block.quality(name) for name in self.block.columns}

    def by_severity(self) -> tuple[Diagnosis, ...]:
        """Return the incidents, the most severe first and the dismissed ones last."""
        return tuple(sorted(self.incidents, key=_severity, reverse=True))

    def most_severe(self, count: int) -> tuple[Diagnosis, ...]:
        """Return the most severe incidents, in the order of onset."""
        chosen = {report.incident.number for report in self.by_severity()[:count]}
        return tuple(report for report in self.incidents if report.incident.number in chosen)

    def package_of(self, finding: Finding) -> str | None:
        """Return the package whose detector made this finding; None if it is trimtab's."""
        return self.packages.get(finding.detector)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values, without the records."""
        steps = self.block.step
        return {
            "source": self.source,
            "format": self.format,
            "rules": self.rules,
            "records": len(self.block),
            "first_step": int(steps[0]) if len(steps) else None,
            "last_step": int(steps[-1]) if len(steps) else None,
            "signals": {name: quality.label for name, quality in self.signals.items()},
            "discarded": to_jsonable(compute_discards(self.block)),
            "verdict": self.verdict,
            "facts": to_jsonable(self.facts),
            "notes": list(self.notes),
            "packages": dict(self.packages),
            "transitions": to_jsonable(self.transitions),
            "incidents": [diagnosis.to_dict(self.packages) for diagnosis in self.incidents],
        }

    def brief(self, since: int | str | None = None, *, status: str = "") -> dict[str, Any]:
        """Return verdict, what to do and what is new, as JSON values in less than a kilobyte.

        Args:
            since: A tick, or the `token` of an earlier brief; None for everything.
            status: How the run's process stands, if you know it; a change of it is new.

        Raises ConfigError if `since` is neither.
        """
        from trimtab.report.brief import make_brief

        return make_brief(self, since, status)

    def to_markdown(self) -> str:
        """Return the post-mortems of all incidents as one document."""
        # Imported here, as below: the views are built from this class.
        from trimtab.report.postmortem import write_postmortem

        if not self.incidents:
            return f"{self.verdict}\n"
        postmortems = [write_postmortem(incident, self) for incident in self.incidents]
        return "\n".join([f"**{self.verdict}**\n", *postmortems])

    def plot(self, ax: Any = None) -> Any:
        """Draw the loss with its incidents, on new axes of matplotlib or on `ax`; returns the axes.

        Without matplotlib it returns the same figure as an object that a notebook shows.
        """
        from trimtab.report.figures import RunCurve

        curve = RunCurve.from_report(self)
        if ax is None:
            try:
                from matplotlib import pyplot
            except ImportError:
                warnings.warn(
                    "plot() has no axes without matplotlib: pip install matplotlib", stacklevel=2
                )
                return curve
            _, ax = pyplot.subplots(figsize=(8, 3), layout="constrained")
        curve.draw_on(ax)
        return ax

    def to_frame(self) -> Any:
        """Return the records as a pandas DataFrame: `step`, `attempt`, and a column per signal.

        Signals have the dtype Float64, in which a value that was not recorded is `pandas.NA` while
        a recorded NaN or infinity stays one. Most operations of pandas treat NaN and NA alike;
        `report.block.column(name)` keeps them apart. Raises ImportError without pandas.
        """
        try:
            from pandas import DataFrame, arrays
        except ImportError as error:
            raise ImportError("to_frame needs pandas: pip install pandas") from error
        frame: dict[str, Any] = {"step": self.block.step, "attempt": self.block.attempt}
        for name, column in self.block.columns.items():
            frame.setdefault(name, arrays.FloatingArray(column.values.copy(), ~column.present))
        return DataFrame(frame)

    def __repr__(self) -> str:
        return printable(f"<RunReport of {clip(self.source)}: {self.verdict}>")

    def __str__(self) -> str:
        return printable(f"{clip(self.source)}: {self.verdict}")

    def _repr_html_(self) -> str:
        from trimtab.report.notebook import report_card

        return report_card(self)


def _severity(diagnosis: Diagnosis) -> tuple[int, int, float]:
    """Return a key that sorts incidents from the least to the most severe."""
    symptoms = diagnosis.symptoms
    height = (symptoms.loss_peak or 0.0) - (symptoms.loss_before or 0.0)
    return (*diagnosis.severity, height if math.isfinite(height) else math.inf)


def _what(diagnosis: Diagnosis) -> str:
    """Return what an incident is, with its step: "Divergent since step 14,250"."""
    incident = diagnosis.incident
    step = f"step {incident.onset.step:,}"
    is_named = incident.incident_class not in (IncidentClass.SILENT, IncidentClass.OPEN)
    if not is_named or diagnosis.not_finite:
        symptom = incident.main_symptom
        if symptom == Symptom.HELD_OUT_ROSE:
            return f"Overfitting at {step}"
        # A rule of the user's begins with the name of a metric, as it is spelled.
        words = symptom[:1].upper() + symptom[1:] if symptom in set(Symptom) else symptom
        return f"{words} at {step}"
    is_over = incident.end is not None
    return f"{incident.incident_class.capitalize()} {'at' if is_over else 'since'} {step}"
