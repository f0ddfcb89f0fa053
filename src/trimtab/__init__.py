"""Trimtab keeps large PyTorch training runs on course.

Names are loaded when they are first used: `import trimtab` costs next to nothing, and nothing here
loads torch unless it is asked for by name.
"""

import importlib
from typing import TYPE_CHECKING, Any

from trimtab._version import __version__

if TYPE_CHECKING:
    from trimtab.core.block import Block, Column, Event
    from trimtab.core.config import Config
    from trimtab.core.errors import TrimtabError
    from trimtab.core.findings import Finding
    from trimtab.core.incidents import Incident
    from trimtab.judge import Judge
    from trimtab.live.watch import watch
    from trimtab.policy.incident_report import IncidentReport
    from trimtab.readers import read_log

__all__ = [
    "Block",
    "Column",
    "Config",
    "Event",
    "Finding",
    "Incident",
    "IncidentReport",
    "Judge",
    "TrimtabError",
    "__version__",
    "read_log",
    "watch",
]

_HOME = {
    "Block": "trimtab.core.block",
    "Column": "trimtab.core.block",
    "Config": "trimtab.core.config",
    "Event": "trimtab.core.block",
    "Finding": "trimtab.core.findings",
    "Incident": "trimtab.core.incidents",
    "Judge": "trimtab.judge",
    "IncidentReport": "trimtab.policy.incident_report",
    "TrimtabError": "trimtab.core.errors",
    "read_log": "trimtab.readers",
    "watch": "trimtab.live.watch",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from trimtab.core.errors import MissingExtra

        message = f'trimtab.{name} needs torch; run: pip install "trimtab[torch]"'
        raise MissingExtra(message) from error


def __dir__() -> list[str]:
    return __all__
