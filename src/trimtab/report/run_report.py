"""RunReport: one run, judged and explained; every report is made from it."""

import math
from dataclasses import dataclass
from typing import Any

from trimtab.core.block import Block
from trimtab.core.causes import AnyCause
from trimtab.core.incidents import IncidentClass
from trimtab.core.jsonable import to_jsonable
from trimtab.diagnose.context import RunFacts
from trimtab.diagnose.measures.discards import compute_discards
from trimtab.policy.incident_report import IncidentReport

_MILD_TO_GRAVE = [
    IncidentClass.HARD_BATCH,
    IncidentClass.RECOVERABLE,
    IncidentClass.PLATEAU,
    None,
    IncidentClass.SILENT,
    IncidentClass.LINGERING,
    IncidentClass.DIVERGENT,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """One run, judged and explained."""

    source: str
    """The log or run directory, as the user named it."""
    format: str
    rules: str
    block: Block
    facts: RunFacts
    notes: tuple[str, ...]
    """What the reader had to say about the log."""
    opinions: tuple[IncidentReport, ...]
    """One per incident, in the order of onset."""
    price_per_hour: float | None = None
    """What an hour of the whole job costs, if somebody said."""

    def gravest(self, count: int) -> tuple[IncidentReport, ...]:
        """The gravest incidents, in the order of onset."""
        grave_first = sorted(
            range(len(self.opinions)), key=lambda at: _gravity(self.opinions[at]), reverse=True
        )
        return tuple(self.opinions[at] for at in sorted(grave_first[:count]))

    def to_dict(self) -> dict[str, Any]:
        """The account in JSON's terms, without the records themselves."""
        steps = self.block.step
        return {
            "source": self.source,
            "format": self.format,
            "rules": self.rules,
            "records": len(self.block),
            "first_step": int(steps[0]) if len(steps) else None,
            "last_step": int(steps[-1]) if len(steps) else None,
            "signals": {name: self.block.quality(name).label for name in self.block.columns},
            "discarded": to_jsonable(compute_discards(self.block)),
            "facts": to_jsonable(self.facts),
            "notes": list(self.notes),
            "incidents": [opinion_to_dict(opinion) for opinion in self.opinions],
        }


def opinion_to_dict(opinion: IncidentReport) -> dict[str, Any]:
    """One incident in JSON's terms."""
    told: dict[str, Any] = to_jsonable(opinion)
    diagnosis = opinion.diagnosis
    told["diagnosis"]["cause"] = _cause(diagnosis.cause)
    for hypothesis, shown in zip(
        diagnosis.hypotheses, told["diagnosis"]["hypotheses"], strict=True
    ):
        shown["cause"] = _cause(hypothesis.cause)
    # The leaf says again what the diagnosis says, in the general.
    del told["diagnosis"]["walk"]["leaf"]
    return told


def _cause(cause: AnyCause | None) -> dict[str, str] | None:
    return {"id": cause.id, "title": cause.title} if cause else None


def _gravity(opinion: IncidentReport) -> tuple[int, float]:
    """A key that sorts incidents from mild to grave."""
    symptoms = opinion.diagnosis.symptoms
    height = (symptoms.loss_peak or 0.0) - (symptoms.loss_before or 0.0)
    return (
        _MILD_TO_GRAVE.index(opinion.diagnosis.incident_class),
        height if math.isfinite(height) else math.inf,
    )
