"""Settings: frozen dataclasses with a doc under each field, read from mappings and TOML files.

A name that is not a setting is an error with the closest names in it, never ignored.
"""

import dataclasses
import difflib
import math
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from trimtab.core.errors import ConfigError
from trimtab.core.jsonable import number_from_json, to_jsonable

MAX_LISTED = 16
"""More names than this are not listed in an error."""


class Section:
    """A frozen dataclass of settings, or of sections of settings."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], path: str = "") -> Self:
        """Build the section from values; raises ConfigError for a name that is not a setting.

        Args:
            values: The settings, by name.
            path: Where the section is in a file, such as "gate", for the message of an error.
        """
        known = _fields(cls)
        prefix = f"{path}." if path else ""
        arguments: dict[str, Any] = {}
        for name, value in values.items():
            if name not in known:
                raise ConfigError(f"there is no setting '{prefix}{name}'; {_hint(name, known)}")
            arguments[name] = _coerce(f"{prefix}{name}", known[name], value)
        return cls(**arguments)

    @classmethod
    def setting_names(cls) -> tuple[str, ...]:
        """Return the dotted names of all settings, such as detect.threshold_scale."""
        return tuple(_dotted(cls))

    def override(self, settings: Mapping[str, Any]) -> Self:
        """Return the section with some settings changed; raises ConfigError.

        A setting is named in full (detect.threshold_scale) or by its last part (threshold_scale)
        where only one setting has it.
        """
        values = self.to_dict()
        for name, value in settings.items():
            *path, last = self._find(name).split(".")
            table = values
            for part in path:
                table = table[part]
            table[last] = value
        return type(self).from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        settings: dict[str, Any] = to_jsonable(self)
        return settings

    def _find(self, name: str) -> str:
        """Return the dotted name of a setting that may be given by its last part."""
        known = self.setting_names()
        if name in known:
            return name
        found = [dotted for dotted in known if dotted.split(".")[-1] == name]
        if len(found) > 1:
            raise ConfigError(f"{name!r} names several settings: {', '.join(found)}")
        if not found:
            raise ConfigError(f"there is no setting {name!r}; {_hint(name, known)}")
        return found[0]


def require(condition: bool, message: str) -> None:
    """Raise ConfigError unless the condition holds."""
    if not condition:
        raise ConfigError(message)


def _fields(section: type[Section]) -> "dict[str, dataclasses.Field[Any]]":
    return {f.name: f for f in dataclasses.fields(section)}  # type: ignore[arg-type]


def _dotted(section: type[Section]) -> Iterator[str]:
    for name, setting in _fields(section).items():
        kind = setting.type
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from (f"{name}.{part}" for part in _dotted(kind))
        else:
            yield name


def _hint(name: str, known: Collection[str]) -> str:
    """Return the names that a wrong one may have been meant as, or where to find all of them."""
    # By the whole name and by its last part: either may be what the user meant.
    lasts = {dotted.split(".")[-1]: dotted for dotted in known}
    last = name.split(".")[-1]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.7)
    close += [lasts[near] for near in difflib.get_close_matches(last, lasts, n=3, cutoff=0.7)]
    if close:
        return f"did you mean {' or '.join(repr(one) for one in dict.fromkeys(close))}?"
    if len(known) > MAX_LISTED:
        sections = ", ".join(dict.fromkeys(dotted.split(".")[0] for dotted in known))
        return f"settings begin with one of {sections} (docs: Settings)"
    return f"known: {', '.join(known)}"


def _coerce(name: str, setting: "dataclasses.Field[Any]", value: Any) -> Any:
    """Return a value as the setting's type; only an int converts, to a float."""
    kind = setting.type
    if kind == Mapping[str, MetricRule]:
        return _metric_rules(value)
    if isinstance(kind, type) and issubclass(kind, Section):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{name} is a table of settings, got {value!r}")
        return kind.from_dict(value, name)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):  # a bool is an int
        return float(value)
    if kind in (tuple[str, ...], tuple[int, ...]):
        part, words = (str, "strings") if kind == tuple[str, ...] else (int, "whole numbers")
        # A single string would be a tuple of its letters.
        if not isinstance(value, list | tuple) or not all(type(item) is part for item in value):
            raise ConfigError(f"{name} must be a list of {words}, got {value!r}")
        return tuple(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(value, str):
        if value not in list(kind):
            known = ", ".join(kind)
            raise ConfigError(f"{name} must be one of {known}, got {value!r}")
        return kind(value)
    if isinstance(kind, type) and type(value) is not kind:
        raise ConfigError(f"{name} must be {_in_words(kind)}, got {value!r}")
    return value


def _metric_rules(tables: Any) -> "dict[str, MetricRule]":
    """Return the rules on metrics, each from a table of its own."""
    if not isinstance(tables, Mapping):
        raise ConfigError(
            f"rules are tables such as [rules.mfu], got {tables!r}; the rule set is `rule_set`"
        )
    rules = {}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise ConfigError(
                f"rules.{name} must be a table such as {{below = 0.3, for = 200}}, got {table!r}; "
                f'a name with dots is quoted: [rules."a.b"]'
            )
        try:
            rules[name] = MetricRule.from_dict(table)
        except ConfigError as error:
            raise ConfigError(f"rules.{name}: {error}") from None
    return rules


def _in_words(kind: type) -> str:
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a text"}
    return words.get(kind, kind.__name__)


# A setting is here if a user has a reason to change it: a mode, a cadence, a budget, a target. Each
# has a default and its source. Thresholds that were measured are constants beside the code that
# uses them.


class RuleSetName(StrEnum):
    """The rule sets to judge by."""

    TRIMTAB = "trimtab"
    """Trimtab's rules (docs/detection.md)."""
    TEXTBOOK = "textbook"
    """The textbook decision tree, unchanged: the baseline to beat."""


class Mode(StrEnum):
    """What a guard may do to the run it watches."""

    OBSERVE = "observe"
    """Nothing: the trained bits are identical to those of a run without trimtab."""
    PROTECT = "protect"
    """Discard bad steps before they reach the weights."""
    RECOVER = "recover"
    """Protect, and undo proven harm to weights or optimizer by restoring a snapshot."""

    @property
    def is_protected(self) -> bool:
        """Whether bad steps are discarded."""
        return self is not Mode.OBSERVE


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectConfig(Section):
    """Trimtab's rules. Thresholds follow the noise of the run; one setting scales them all."""

    threshold_scale: float = 1.0
    """Multiplies all thresholds for spikes and levels: above 1 fewer alarms, below 1 earlier ones.
    At 1 the false alarms are those of the published scoreboard."""

    objective: str = "auto"
    """What the loss is: "measure", a measure of health that should fall; "surrogate", such as the
    loss of a policy or a critic, whose level says nothing; "auto", a surrogate where a reward,
    advantages or a clip fraction are recorded, or where it is negative and has not fallen."""

    def __post_init__(self) -> None:
        require(0.5 <= self.threshold_scale <= 10, "threshold_scale must be in 0.5..10")
        require(
            self.objective in ("auto", "measure", "surrogate"),
            'objective must be "auto", "measure" or "surrogate"',
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveConfig(Section):
    """How a live run is watched."""

    lag_steps: int = 2
    """Steps between taking a value on the device and reading it on the host. Two let the device
    run ahead by as much as training loops usually do; equal on all ranks."""

    telemetry_every: int = 0
    """Steps from one measurement of the norms of parameters, updates and moments to the next; 0
    measures every 10 steps where that costs at most 0.5 % of the time, else less often, spreads
    what takes long over several steps, and looks rarely at checksums and gradients that are zero.
    A number that you set is kept, and everything is measured. Source: stability guides log them
    every 10 steps."""

    activations: bool = True
    """Whether outputs of the model's modules, output logits and attention logits are measured, by
    forward hooks in the steps of `telemetry_every`."""

    batch_memory_steps: int = 1024
    """Steps whose token ids are kept on the host, so that an incident can name sequences and
    tokens; 0 keeps none. Records are judged once a second, or when 512 of them wait."""

    ranks: tuple[int, ...] = ()
    """The global ranks that train the model, if not all do and it is not in a DDP of theirs."""

    replicas: int = 0
    """How many ranks hold the same part of parameters that differ between ranks (experts), if that
    is too much to compare; 0 compares them."""

    max_nonfinite_steps: int = 100
    """Steps in a row that may be not finite; one more stops a protected run, and an observed one
    logs a warning. Source: a GradScaler that starts at 2^16 needs at most 40 to find its
    scale."""

    rank_timeout_seconds: float = 1800.0
    """How long a rank waits for the others, at the start and in a step. Source: the default of
    torch's gloo groups; a checkpoint of one rank may take many minutes."""

    hang_seconds: float = 0.0
    """Seconds without a record or an update after which the stacks of all threads are written and
    a run in `recover` ends with 75; 0 turns it off. Choose more than your longest evaluation, save
    or compilation takes. Less than `rank_timeout_seconds`, or the ranks give up first."""

    def __post_init__(self) -> None:
        require(self.max_nonfinite_steps >= 1, "max_nonfinite_steps must be at least 1")
        require(self.batch_memory_steps >= 0, "batch_memory_steps must not be negative")
        require(self.replicas >= 0, "replicas must not be negative")
        require(self.rank_timeout_seconds > 0, "rank_timeout_seconds must be positive")
        require(self.hang_seconds >= 0, "hang_seconds must not be negative")
        require(0 <= self.lag_steps <= 100, "lag_steps must be in 0..100")
        require(self.telemetry_every >= 0, "telemetry_every must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class GateConfig(Section):
    """How a step of a protected run is discarded; when it is, is in `live/protect/rule.py`."""

    promote: bool = True
    """Whether Adam, AdamW, SGD and Adagrad are made fused on an accelerator, the form that needs no
    host read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverConfig(Section):
    """The snapshots of weights and optimizer that are kept in host memory, to restore."""

    snapshot_every: int = 0
    """Updates from one audit and snapshot to the next; 0 for as many as keep them within 0.2 % of
    the time of training, but at most 100. An undo loses up to 2 more."""

    memory_share: float = 0.25
    """The share of the free host memory that the snapshots of all ranks of a machine may take. If
    four do not fit there are three or two, else none, and nothing is undone."""

    rollback: str = "ask"
    """What happens where an older state has won a trial against the present one: "ask" proposes it,
    and `guard.undo()` restores it; "auto" restores it where nothing was changed on purpose since;
    "off" tries no state. Trials need `watch(batch_loss=...)` and snapshots at least 4 updates
    apart."""

    def __post_init__(self) -> None:
        require(self.snapshot_every >= 0, "snapshot_every must be at least 0")
        require(0 < self.memory_share <= 1, "memory_share must be in (0, 1]")
        known = ("ask", "auto", "off")
        require(self.rollback in known, f"rollback must be one of: {', '.join(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderConfig(Section):
    """What a recovering run may do besides undoing proven harm."""

    unattended: bool = False
    """Whether the run ends with exit code 75, for a relaunch from a proven checkpoint, when its
    weights are lost; if not, the log says which checkpoint to relaunch from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipConfig(Section):
    """Sending a run to trackers and alerts, from a process of its own (docs/trackers.md)."""

    to: tuple[str, ...] = ()
    """The sinks that the observer of the run sends it to, such as "mlflow" and "alerts". Addresses
    and credentials come from the environment, never from here."""

    every: int = 10
    """Ticks from one value of a signal to the next. Loss, gradient norm, learning rate,
    throughput, evaluations, discards and non-finite values are always sent. Source: the slow
    telemetry is measured every 10 steps."""

    stall_seconds: float = 600.0
    """Seconds without a record, and for ten steps, before a run is stalled. Source: evaluations and
    checkpoints of large runs take minutes; 600 is what the Prometheus rule of trimtab uses too."""

    drain_seconds: float = 120.0
    """How long the observer that the run started tries to send the rest after the run is over. What
    remains is sent by `trimtab observe RUN --to`. Source: batch systems give a job 30 s to a few
    minutes to end."""

    def __post_init__(self) -> None:
        require(self.every >= 1, "every must be at least 1")
        require(self.stall_seconds > 0, "stall_seconds must be positive")
        require(self.drain_seconds >= 0, "drain_seconds must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyConfig(Section):
    """What of your data leaves the machine."""

    text: bool = True
    """Whether post-mortems, which trackers get too, show tokens and sequences as text where
    `watch(batch_text=...)` allows it; if not, text is in the `batch.json` beside them alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig(Section):
    """Checking training configs."""

    off: tuple[str, ...] = ()
    """Ids of rules to skip, such as TT064."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRule(Section):
    """What a recorded metric must not do: one table `[rules.METRIC]`."""

    above: float = math.inf
    """The largest value that is all right."""

    below: float = -math.inf
    """The smallest value that is all right."""

    change: float = math.inf
    """By which share the metric may leave the median of its first 64 values, such as 0.5."""

    lasting: int = 1
    """Values in a row beyond a limit before it is reported, called `for` in a file."""

    nan: bool = True
    """Whether three values in a row that are not finite are reported."""

    severity: str = "alarm"
    """"alarm" opens an incident and is sent to alerts, "warn" is written to the journal alone."""

    message: str = ""
    """What is reported, if not "METRIC below 0.3 for 200 records"."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], path: str = "") -> Self:
        """Build the rule; `for`, which cannot be a name in Python, is `lasting`."""
        values = {("lasting" if name == "for" else name): one for name, one in values.items()}
        # Limits that are not set are infinite, which JSON spells as a text.
        for name in ("above", "below", "change"):
            number = number_from_json(values.get(name))
            if number is not None:
                values[name] = number
        return super(MetricRule, cls).from_dict(values, path)

    def __post_init__(self) -> None:
        limits = (self.above, self.below, self.change)
        require(not any(map(math.isnan, limits)), "a limit of a rule must not be nan")
        require(self.change > 0, "change must be positive, such as 0.5 for half as much or more")
        require(self.lasting >= 1, "for must be at least 1")
        require(self.severity in ("warn", "alarm"), 'severity must be "warn" or "alarm"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """All settings of a run."""

    rule_set: RuleSetName = RuleSetName.TRIMTAB
    """The rule set to judge by."""
    rules: Mapping[str, MetricRule] = field(default_factory=dict)
    """Your own rules, each a table `[rules.METRIC]` with the name as it is recorded
    (docs/settings.md)."""
    live: LiveConfig = field(default_factory=LiveConfig)
    gate: GateConfig = field(default_factory=GateConfig)
    recover: RecoverConfig = field(default_factory=RecoverConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)
    detect: DetectConfig = field(default_factory=DetectConfig)
    ship: ShipConfig = field(default_factory=ShipConfig)
    privacy: PrivacyConfig = field(default_factory=PrivacyConfig)
    check: CheckConfig = field(default_factory=CheckConfig)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read the settings of a TOML file: its `[tool.trimtab]` table if it has one, else all.

        A `[training]` table in it is the plan of the run; `trimtab check` reads that.
        """
        if not path.is_file():
            kind = "is not a file" if path.exists() else "does not exist"
            raise ConfigError(f"{path} {kind}; check the path")
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
