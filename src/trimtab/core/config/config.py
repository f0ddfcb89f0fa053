"""Config: all settings of trimtab, from TOML or a dict, to JSON."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from trimtab.core.config.gate import GateConfig
from trimtab.core.config.judging import DetectConfig, Rules, TextbookConfig
from trimtab.core.config.ladder import LadderConfig
from trimtab.core.config.live import JournalConfig, LiveConfig
from trimtab.core.config.probes import ProbesConfig
from trimtab.core.config.recover import RecoverConfig
from trimtab.core.config.section import Section
from trimtab.core.config.ship import ShipConfig
from trimtab.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig(Section):
    """Checking training configs."""

    off: tuple[str, ...] = ()
    """Ids of rules to skip, such as TT064."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """All settings of a run."""

    rules: Rules = Rules.TRIMTAB
    """The rule set to judge by."""
    live: LiveConfig = field(default_factory=LiveConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    recover: RecoverConfig = field(default_factory=RecoverConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)
    probes: ProbesConfig = field(default_factory=ProbesConfig)
    detect: DetectConfig = field(default_factory=DetectConfig)
    textbook: TextbookConfig = field(default_factory=TextbookConfig)
    journal: JournalConfig = field(default_factory=JournalConfig)
    ship: ShipConfig = field(default_factory=ShipConfig)
    check: CheckConfig = field(default_factory=CheckConfig)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """The settings in a TOML file: its `[tool.trimtab]` table if it has one, else all of it.

        A `[training]` table in it is the plan of the run; `trimtab check` reads that.
        """
        try:
            document = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(
                f"{path} cannot be read as TOML: {error}; give a file with lines such as "
                "`detect.threshold_scale = 1.5`"
            ) from error
        settings: object = document
        if "tool" in document:  # a pyproject.toml, in which other tables belong to other tools
            tools = document["tool"]
            settings = tools.get("trimtab") if isinstance(tools, dict) else None
        if not isinstance(settings, dict):
            raise ConfigError(f"{path} has no [tool.trimtab] table")
        return cls.from_dict(
            {name: value for name, value in settings.items() if name != "training"}
        )
