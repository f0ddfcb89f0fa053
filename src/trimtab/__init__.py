"""Trimtab keeps large PyTorch training runs healthy.

    report = trimtab.diagnose("train.log")             # what happened in a finished run
    with trimtab.watch(model, optimizer) as guard:     # the same for a live one
    trimtab.check(model, optimizer, loader=loader)     # before the first step
    with trimtab.record("runs/x1") as run: ...         # a live one without torch

Names are loaded on first use: `import trimtab` costs next to nothing, and torch is loaded only by
the names that need it.
"""

from __future__ import annotations

from trimtab._version import __version__

TYPE_CHECKING = False  # type checkers take it for true; importing `typing` takes longer than this
if TYPE_CHECKING:
    from typing import Any

    from trimtab.checks.objects.run import check
    from trimtab.core.block import Block, Column, Event
    from trimtab.core.config import Config
    from trimtab.core.errors import TrimtabError
    from trimtab.core.findings import Finding
    from trimtab.core.incidents import Incident
    from trimtab.diagnosis import diagnose
    from trimtab.explain.diagnosis import Diagnosis
    from trimtab.journal.run_log import RunLog, record
    from trimtab.judge import Judge
    from trimtab.live.watch import watch
    from trimtab.readers import read_log
    from trimtab.report.run_report import RunReport
    from trimtab.state.checkpoints.run_checkpoints import Checkpoints

__all__ = [
    "Block",
    "Checkpoints",
    "Column",
    "Config",
    "Diagnosis",
    "Event",
    "Finding",
    "Incident",
    "Judge",
    "RunLog",
    "RunReport",
    "TrimtabError",
    "__version__",
    "check",
    "diagnose",
    "read_log",
    "record",
    "watch",
]

_HOME = {
    "Block": "trimtab.core.block",
    "Checkpoints": "trimtab.state.checkpoints.run_checkpoints",
    "Column": "trimtab.core.block",
    "Config": "trimtab.core.config",
    "Event": "trimtab.core.block",
    "Finding": "trimtab.core.findings",
    "Incident": "trimtab.core.incidents",
    "Diagnosis": "trimtab.explain.diagnosis",
    "Judge": "trimtab.judge",
    "RunLog": "trimtab.journal.run_log",
    "RunReport": "trimtab.report.run_report",
    "TrimtabError": "trimtab.core.errors",
    "check": "trimtab.checks.objects.run",
    "diagnose": "trimtab.diagnosis",
    "read_log": "trimtab.readers",
    "record": "trimtab.journal.run_log",
    "watch": "trimtab.live.watch",
}
"""The module of each public name."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from trimtab.core.errors import MissingExtra

        raise MissingExtra.of(f"trimtab.{name} needs torch", "torch") from error


def __dir__() -> list[str]:
    return __all__
