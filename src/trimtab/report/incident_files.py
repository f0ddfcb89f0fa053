"""The files of an incident: incident.json for machines, postmortem.md for people."""

import json
from pathlib import Path

from trimtab.policy.incident_report import IncidentReport
from trimtab.report.postmortem import write_postmortem
from trimtab.report.run_report import RunReport, opinion_to_dict


def write_incident(folder: Path, opinion: IncidentReport, account: RunReport) -> Path:
    """Write both files into the folder; return the path of the post-mortem."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = json.dumps(opinion_to_dict(opinion), indent=1, allow_nan=False)
    (folder / "incident.json").write_text(machine + "\n", encoding="utf-8")
    postmortem = folder / "postmortem.md"
    postmortem.write_text(write_postmortem(opinion, account), encoding="utf-8")
    return postmortem
