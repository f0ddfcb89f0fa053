"""The report in less than a kilobyte, for who looks at a run again and again.

    first look        the verdict, the worst incident, a token
    next look         `since` that token: what is new, and the worst incident of that
    nothing is new    the verdict and the next token, in 300 bytes

Everything here is taken from the report; nothing is judged, and no other words are found for it.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimtab.core.errors import ConfigError
from trimtab.core.incidents import IncidentTransition, Transition
from trimtab.core.jsonable import to_jsonable
from trimtab.core.signals import LOSS
from trimtab.core.text import printable
from trimtab.explain.diagnosis import Diagnosis
from trimtab.journal.directory import incident_folder_name
from trimtab.report.run_report import RunReport
from trimtab.report.wording import certainty, short_cause

MAX_BYTES = 970
"""Bytes of an answer, with room for the schema and the number of changes left out."""
MAX_NEW = 4
"""Transitions that are listed, the last ones; the others are counted. Chosen."""

_QUIET_VERDICT, _VERDICT, _SENTENCE, _NAME = 110, 200, 150, 80
"""Bytes of a text. Chosen: what is left of 300 and of 1,000 bytes beside the numbers."""

_TOKEN = re.compile(r"(-?[0-9]{1,19})(?:\.([0-9a-f]{6}))?")


def make_brief(
    report: RunReport, since: int | str | None = None, status: str = ""
) -> dict[str, Any]:
    """Return verdict, what to do, and what is new since a tick or the token of an earlier brief.

    `status` is that of the run's process, if it is known. Raises ConfigError for a bad token.
    """
    token, worst = _Token.from_report(report, status), report.by_severity()
    answer: dict[str, Any] = {
        "verdict": fitted(report.verdict, _VERDICT),
        "act": "none" if report.tone == "good" else worst[0].action.kind.value,
        **({"status": status} if status else {}),
        "step": int(report.block.step[-1]) if len(report.block) else None,
        "token": f"{token.tick}.{token.digest}",
    }
    changes: Sequence[IncidentTransition] = ()
    if since is not None:
        seen = _Token.parse(since)
        changes = _changes_since(report, seen, token)
        answer["new"] = [_transition(change) for change in changes[-MAX_NEW:]]
        if not changes and seen.digest in ("", token.digest):
            return {**answer, "verdict": fitted(report.verdict, _QUIET_VERDICT)}
        if not changes:  # the status, an action, a checkpoint, or what was dated back
            answer["new"] = [{"what": "standing"}]
    chosen = {change.number for change in changes}
    shown = [one for one in worst if not chosen or one.incident.number in chosen]
    answer["incidents"] = len(worst)
    if shown:
        answer["incident"] = incident_brief(shown[0], report)
    while len(json.dumps(answer)) > MAX_BYTES and len(answer.get("new", ())) > 1:
        answer["new"].pop(0)
    if changes and len(changes) > len(answer["new"]):
        answer["earlier_changes"] = len(changes) - len(answer["new"])
    return answer


def incident_brief(diagnosis: Diagnosis, report: RunReport) -> dict[str, Any]:
    """Return one incident: class, onset, values, what to do, checkpoint, cause, where to read."""
    incident, symptoms, facts = diagnosis.incident, diagnosis.symptoms, diagnosis.incident.facts
    loss = {
        "before": symptoms.loss_before,
        "peak": symptoms.loss_peak,
        "now": _newest_loss(diagnosis, report),
    }
    reward = facts.reward and {"before": facts.reward.before, "now": facts.reward.now}
    folder = incident_folder_name(incident.number, incident.onset.step)
    found: dict[str, Any] = {
        "number": incident.number,
        "class": incident.incident_class.value,
        "certainty": round(incident.certainty, 2),
        "onset": incident.onset.step,
        "end": incident.end.step if incident.end else None,
        "signal": fitted(incident.findings[0].signal, _NAME),
        "loss": {name: _rounded(value) for name, value in loss.items() if value is not None},
        "reward": reward and {name: _rounded(value) for name, value in reward.items()},
        "do": fitted(diagnosis.action.instruction, _SENTENCE),
        "checkpoint": diagnosis.checkpoint and fitted(diagnosis.checkpoint, _NAME),
        "cause": fitted(short_cause(diagnosis), _NAME),
        "probability": _rounded(certainty(diagnosis)),
        "dismissed": fitted(diagnosis.dismissed, _NAME),
        "read": f"trimtab/incidents/{folder}/postmortem.md" if report.format == "journal" else None,
    }
    return {name: value for name, value in found.items() if value not in (None, "", {})}


def _newest_loss(diagnosis: Diagnosis, report: RunReport) -> float | None:
    """Return the level of the loss now; NaN or infinite if the newest losses are."""
    facts = diagnosis.incident.facts
    if facts.nonfinite_at_end:
        column = report.block.column(LOSS)
        bad = column.values[column.nonfinite]
        return float(bad[-1]) if len(bad) else None
    return facts.level.now if facts.level else None


def fitted(text: str, max_bytes: int) -> str:
    """Return a text on one line that takes at most so many bytes in JSON, cut off if need be."""
    text = printable(text[:max_bytes])
    while len(json.dumps(text)) - 2 > max_bytes:
        text = text[: len(text) * 9 // 10]
    return text


@dataclass(frozen=True, slots=True)
class _Token:
    """How far a look came, and a digest of what it saw: two with the same digest saw the same."""

    tick: int
    digest: str

    @classmethod
    def from_report(cls, report: RunReport, status: str) -> "_Token":
        seen = []
        for one in report.incidents:
            what = (one.incident_class, one.action.kind, one.incident.end is not None)
            seen.append((one.incident.number, *what, one.checkpoint, one.dismissal))
        digest = hashlib.sha256(repr((status, seen)).encode()).hexdigest()[:6]
        return cls(int(report.block.tick[-1]) if len(report.block) else -1, digest)

    @classmethod
    def parse(cls, given: int | str) -> "_Token":
        found = _TOKEN.fullmatch(str(given))
        if found is None:
            raise ConfigError(
                f"since is a tick or the token of an earlier answer, got {str(given)[:40]!r}; "
                "leave it out to see everything"
            )
        return cls(int(found[1]), found[2] or "")


def _changes_since(report: RunReport, since: _Token, now: _Token) -> Sequence[IncidentTransition]:
    """Return the transitions that were not there, or not seen, at an earlier look."""
    if since.digest == now.digest:
        return ()
    # A run that is shorter than it was has been begun anew.
    after = since.tick if since.tick <= now.tick else -1
    return [change for change in report.transitions if change.tick > after]


def _transition(change: IncidentTransition) -> dict[str, Any]:
    what = change.transition.value
    shown: dict[str, Any] = {"incident": change.number, "step": change.step, "what": what}
    if change.transition in (Transition.OPENED, Transition.CLASSIFIED):
        shown |= {"from": change.before and change.before.value, "to": change.after.value}
    return shown


def _rounded(value: float | None) -> Any:
    return None if value is None else to_jsonable(float(f"{value:.4g}"))
