"""Settings: frozen dataclasses with a doc under each field.

Every setting has a default and its source; a name that is not a setting is an error.

config    Config, all sections together; section: what each of them can do
judging   the rule set, its sensitivity, the textbook's thresholds
live      how a run is watched and its journal written
gate      when a step is discarded; recover, ladder, probes: what a recovering run may do
ship      where a run is sent to
"""

from trimtab.core.config.config import CheckConfig, Config
from trimtab.core.config.gate import GateConfig
from trimtab.core.config.judging import DetectConfig, Rules, TextbookConfig
from trimtab.core.config.ladder import LadderConfig
from trimtab.core.config.live import JournalConfig, LiveConfig, Mode
from trimtab.core.config.probes import ProbesConfig
from trimtab.core.config.recover import RecoverConfig
from trimtab.core.config.section import Section
from trimtab.core.config.ship import ShipConfig

__all__ = [
    "CheckConfig",
    "Config",
    "DetectConfig",
    "GateConfig",
    "JournalConfig",
    "LadderConfig",
    "LiveConfig",
    "Mode",
    "ProbesConfig",
    "RecoverConfig",
    "Rules",
    "Section",
    "ShipConfig",
    "TextbookConfig",
]
