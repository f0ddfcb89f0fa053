"""ResumeAudit: a finding for each thing that a resume has not restored, with its fix."""

from trimtab.core.block import Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Explanation, Finding, Severity, Symptom
from trimtab.core.signals import RESUME_AUDIT
from trimtab.journal.resume.comparison import ORDER, THINGS, WARNING_BIT


class ResumeAudit(Detector):
    """One finding for each bit."""

    name = "resume-audit"
    needs = RESUME_AUDIT

    def __init__(self) -> None:
        """Remember nothing: each record says all."""

    def update(self, record: Record) -> list[Finding]:
        value = record.signals.get(RESUME_AUDIT)
        if value is None or not 0.0 < value < WARNING_BIT * WARNING_BIT or value != int(value):
            return []  # nothing, or not ours
        bits = int(value)
        findings = []
        for place, symptom in enumerate(ORDER):
            bit = 1 << place
            if bits & bit:
                findings.append(self._finding(record, symptom, Severity.ALARM))
            elif bits & bit * WARNING_BIT:
                findings.append(self._finding(record, symptom, Severity.WARN))
        return findings

    def _finding(self, record: Record, symptom: Symptom, severity: Severity) -> Finding:
        thing = THINGS[symptom]
        return self.finding(
            record,
            symptom,
            severity,
            RESUME_AUDIT,
            expected=0.0,
            explanation=Explanation(
                cause_id=thing.cause.id,
                cause_title=thing.cause.title,
                remedy=thing.fix[0].upper() + thing.fix[1:] + ".",
            ),
        )
