"""The published schema: every command with `--json`, under one version."""

from typing import Any

from trimtab.cli.schema import lab_shapes as lab
from trimtab.cli.schema import run_shapes as runs
from trimtab.cli.schema.json_type import Definitions, Schema
from trimtab.cli.schema.version import SCHEMA_VERSION, schema_name
from trimtab.core.causes import Cause, UserCause
from trimtab.core.findings import Finding
from trimtab.explain.batches.batch_report import RowReport
from trimtab.explain.causes.ranking import Candidate
from trimtab.explain.measures.comparison import Comparison
from trimtab.explain.tree.walk import Walk
from trimtab.state.checkpoints.index import Verdict
from trimtab.state.checkpoints.manifest import CheckpointFacts

PRINTED_BY: dict[str, Any] = {
    "diagnose": runs.DiagnosedRun,
    "report": runs.ReportedRun,
    "check": runs.CheckedConfig,
    "preflight": runs.PreflightFindings | runs.CoordinateFindings | runs.RangeFindings,
    "compare": runs.ComparedRuns,
    "checkpoints": runs.ListedCheckpoints,
    "follow": lab.FollowedRun,
    "note": lab.AddedNote,
    "approve": lab.AnsweredProposal,
    "decline": lab.AnsweredProposal,
    "probe": lab.PlannedReplay,
    "ship": lab.ShippedRun,
    "selftest": lab.Selftest,
    "demo": lab.Demo,
    "corpus scan": lab.ScannedCorpus | lab.ScannedShard,
    "corpus merge": lab.ScannedCorpus,
    "corpus show": lab.ScannedCorpus,
    "lab list": lab.LabKinds,
    "lab run": lab.LabRun,
    "lab show": lab.LabRun,
    "lab suite": lab.LabSuite,
    "lab train": lab.TrainedRun,
}
"""What each command prints."""

LEFT_OUT: dict[type, tuple[str, ...]] = {
    Walk: ("leaf",),
    Candidate: ("weights",),
    RowReport: ("token_ids", "text"),
}
"""Fields that `Diagnosis.to_dict` leaves out."""

ADDED: dict[type, dict[str, Any]] = {
    Finding: {"package": str},
    Comparison: {
        "run": str,
        "base": str,
        "within": bool,
        "until": int | None,
        "notes": runs.SourceNotes,
    },
    CheckpointFacts: {
        "folder": str,
        "verdict": Verdict,
        "files": str,
        "in_doubt": bool,
        "reason": str,
    },
}
"""Fields that commands add to a dataclass."""

PRINTED_AS: dict[type, Any] = {Cause: runs.CauseName, UserCause: runs.CauseName}


def definition_name(command: str) -> str:
    """The name of a command's definition: without spaces, which a reference cannot hold."""
    return command.replace(" ", "-")


def published_schema() -> Schema:
    """The schema of everything: one definition per command, chosen by the property `schema`."""
    definitions = Definitions(left_out=LEFT_OUT, added=ADDED, printed_as=PRINTED_AS)
    commands: dict[str, Schema] = {}
    for command, kind in PRINTED_BY.items():
        marked: Schema = {
            "type": "object",
            "properties": {"schema": {"const": schema_name(command)}},
            "required": ["schema"],
        }
        commands[definition_name(command)] = {"allOf": [marked, definitions.schema_of(kind)]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:trimtab:schema:{SCHEMA_VERSION}",
        "title": f"What trimtab prints with --json, version {SCHEMA_VERSION}",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in commands],
        "$defs": commands | dict(sorted(definitions.schemas.items())),
    }
