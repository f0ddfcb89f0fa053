"""What a resume has not restored goes to the log, to the journal and into the record."""

from trimtab.core import signals
from trimtab.detect.resume.audit import describe_difference, encode_differences
from trimtab.journal import AUDIT_EVENT, JournalWriter
from trimtab.live.host.resume_facts import ResumeFacts
from trimtab.live.shield import log


def report_audit(
    resume: ResumeFacts,
    journal: JournalWriter,
    step: int,
    found: dict[str, float],
    *,
    is_planned: bool,
) -> bool:
    """Compare the record of a first step with what was saved; whether something is different."""
    audit = None
    with resume.shield.guarding("record"):
        audit = resume.compare(found, is_planned=is_planned)
    if audit is None:
        return False
    sentences = [describe_difference(difference) for difference in audit.differences]
    journal.event(AUDIT_EVENT, step, findings=sentences, saved=audit.saved, found=audit.found)
    if not sentences:
        log.info("trimtab: resume at step %d: everything compared continues", step)
        return False
    found[signals.RESUME_AUDIT] = encode_differences(audit.differences)
    log.warning("trimtab: resume at step %d: %s", step, "; ".join(sentences))
    return True
