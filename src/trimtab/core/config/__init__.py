"""Settings: frozen dataclasses with a doc under each field.

config    every setting, in sections; a name that is not a setting is an error
section   what each section can do: read a mapping, check it, change some of it
"""

from trimtab.core.config.config import (
    CheckConfig,
    Config,
    DetectConfig,
    GateConfig,
    LadderConfig,
    LiveConfig,
    Mode,
    ProbesConfig,
    RecoverConfig,
    Rules,
    ShipConfig,
)
from trimtab.core.config.section import Section

__all__ = [
    "CheckConfig",
    "Config",
    "DetectConfig",
    "GateConfig",
    "LadderConfig",
    "LiveConfig",
    "Mode",
    "ProbesConfig",
    "RecoverConfig",
    "Rules",
    "Section",
    "ShipConfig",
]
