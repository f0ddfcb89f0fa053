"""Panels of findings that name their trouble by themselves: was there one in this incident?"""

from trimtab.core.findings import Symptom
from trimtab.diagnose.context import IncidentContext
from trimtab.diagnose.evidence.reading import Panel, Reading, number, reading

_MOST_KINDS = 3
"""More are not spelt out."""


def panel_of(*symptoms: Symptom) -> Panel:
    """The panel that asks for findings of any of these kinds."""

    def panel(case: IncidentContext) -> Reading:
        hits = [finding for finding in case.incident.findings if finding.symptom in symptoms]
        if not hits:
            if len(symptoms) > _MOST_KINDS:
                return reading("findings", False, "none of the findings does")
            return reading("findings", False, f"no finding of the kind: {' or '.join(symptoms)}")
        first = hits[0]
        expected = "" if first.expected is None else f", expected {number(first.expected)}"
        seen = f"{first.signal} {number(first.value)} at step {first.step}{expected}"
        return reading(first.signal, True, f"{seen}{case.doubt(first.signal)}")

    return panel
