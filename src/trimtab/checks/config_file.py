"""Open a training config of any known format. Nothing in it is ever executed or unpickled."""

import dataclasses
import difflib
import json
import tomllib
import types
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from os import PathLike
from pathlib import Path
from typing import Any, get_args, get_type_hints

from trimtab.checks.formats import hf, megatron, torchtitan
from trimtab.checks.formats.reading import ConfigReading, Dialect, Document, Spelling, Syntax
from trimtab.checks.formats.syntax import json_lines, load_yaml, read_flags, toml_lines
from trimtab.checks.plan import TrainingPlan
from trimtab.core.config import CheckConfig
from trimtab.core.errors import UnreadablePlan

LARGEST_FILE = 4_000_000
"""Bytes. Configs are small; a file beyond this is a log or a checkpoint."""

KNOWN = (
    "HF TrainingArguments, axolotl, torchtitan, Megatron-LM arguments, or a [training] table "
    "(docs/check.md)"
)


def read_config(
    config: str | PathLike[str] | Mapping[str, Any] | object, known: Mapping[str, Any] | None = None
) -> ConfigReading:
    """Read a config: a file, a mapping, or an instance of HF's TrainingArguments.

    `known` holds settings by the names of `TrainingPlan`; they override the
    config. Raises UnreadablePlan for a config of no known format.
    """
    try:
        settings = _typed_settings(known or {}, "--set")
        reading = _read(config, settings.get("steps"))
    except (OverflowError, ValueError) as error:  # steps or shares that are infinite or NaN
        source = config if isinstance(config, str | PathLike) else type(config).__name__
        raise UnreadablePlan(f"{source} has a number that no run can use: {error}") from error
    return replace(reading, plan=replace(reading.plan, **settings)) if settings else reading


def _read(
    config: str | PathLike[str] | Mapping[str, Any] | object, steps: int | None
) -> ConfigReading:
    if isinstance(config, Mapping):
        return _read_tree(config, Document(source="mapping", steps=steps))
    if isinstance(config, str | PathLike):
        return _read_file(Path(config), steps)
    document = Document(source=type(config).__name__, steps=steps)
    if hasattr(config, "to_dict"):
        return _read_tree(config.to_dict(), document)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return _read_tree(dataclasses.asdict(config), document)
    raise UnreadablePlan(f"a {type(config).__name__} is not a training config; known: {KNOWN}")


def _read_file(path: Path, steps: int | None) -> ConfigReading:
    text = _read_text(path)
    document = Document(source=str(path), steps=steps)
    if path.suffix.lower() in (".yaml", ".yml"):
        return _read_yaml(text, document)
    if text.lstrip().startswith("{"):
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnreadablePlan(
                f"{path} starts like JSON but cannot be read as JSON: {error}"
            ) from error
        return _read_tree(tree, replace(document, lines=json_lines(text)))
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if path.suffix.lower() == ".toml":  # any other suffix may be a launch script
            raise UnreadablePlan(f"{path} cannot be read as TOML: {error}") from error
        return _read_flags(text, document)
    return _read_tree(table, replace(document, lines=toml_lines(text), syntax=Syntax.TOML))


def _read_yaml(text: str, document: Document) -> ConfigReading:
    # Flags as keys, as in Megatron-LM's tests.
    if read_flags(text).values.keys() & megatron.TABLE.marks:
        return _read_flags(text, document)
    tree, lines = load_yaml(text, document.source)
    if not isinstance(tree, Mapping):
        raise UnreadablePlan(f"{document.source} holds no settings; known: {KNOWN}")
    tree = {str(name): value for name, value in tree.items()}
    return _read_tree(tree, replace(document, lines=lines, syntax=Syntax.YAML))


def _read_text(path: Path) -> str:
    try:
        if not path.is_file():
            raise UnreadablePlan(f"{path} is not a file; give a training config ({KNOWN})")
        if path.stat().st_size > LARGEST_FILE:
            raise UnreadablePlan(f"{path} is over {LARGEST_FILE:,} bytes, too large for a config")
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise UnreadablePlan(f"{path} cannot be read as text: {error}") from error
    if not text.strip():
        raise UnreadablePlan(f"{path} is empty; give a training config ({KNOWN})")
    return text


def _read_flags(text: str, document: Document) -> ConfigReading:
    flags = read_flags(text)
    names = flags.values.keys() | set(flags.unresolved)
    if names & megatron.TABLE.marks:
        return megatron.read_megatron(flags, document)
    underscored = {name.replace("-", "_"): value for name, value in flags.values.items()}
    if underscored.keys() & hf.TABLE.marks:
        lines = {name.replace("-", "_"): line for name, line in flags.lines.items()}
        return hf.read_hf(underscored, replace(document, lines=lines), dialect=hf.HF_FLAGS)
    raise UnreadablePlan(f"{document.source} has no known format; give {KNOWN}")


def _read_tree(tree: Mapping[str, Any], document: Document) -> ConfigReading:
    if tree.keys() & hf.AXOLOTL_MARKS:
        return hf.read_axolotl(tree, document)
    if tree.keys() & hf.TABLE.marks:
        return hf.read_hf(tree, document)
    tool = tree.get("tool")
    ours = tool.get("trimtab", tree) if isinstance(tool, Mapping) else tree
    training = ours.get("training")
    if tree.keys() & torchtitan.TABLE.marks:  # before ours: torchtitan has a [training] table, too
        return torchtitan.read_torchtitan(tree, document)
    if isinstance(training, Mapping):
        table_lines = {
            name.removeprefix("tool.trimtab.").removeprefix("training."): line
            for name, line in document.lines.items()
            if name.removeprefix("tool.trimtab.").startswith("training.")
        }
        settings = CheckConfig.from_dict(ours.get("check", {}), "check")
        return _read_table(training, replace(document, lines=table_lines), settings.off)
    if tree.keys() & FIELDS:
        return _read_table(tree, document)
    raise UnreadablePlan(f"{document.source} has no known format; give {KNOWN}")


FIELDS = frozenset(field.name for field in dataclasses.fields(TrainingPlan))
_TYPES = get_type_hints(TrainingPlan)


def _read_table(
    training: Mapping[str, Any], document: Document, off: tuple[str, ...] = ()
) -> ConfigReading:
    return ConfigReading(
        source=document.source,
        dialect=DIALECTS[document.syntax],
        plan=TrainingPlan(**_typed_settings(training, document.source)),
        lines={name: line for name, line in document.lines.items() if name in FIELDS},
        off=off,
    )


def _typed_settings(settings: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return each setting in the type of its field; raise UnreadablePlan if one does not fit."""
    typed: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in FIELDS:
            raise UnreadablePlan(f"{source}: a plan has no setting {name!r}; {_hint(name)}")
        if value is not None:
            typed[name] = _typed(source, name, value)
    return typed


_ELSEWHERE = {
    **{name: field for field, names in hf.TABLE.names.items() for name in names},
    "betas": "beta1 and beta2",
    "block_size": "seq_len",
    "clip": "clip_norm",
    "dtype": "compute",
    "eps": "epsilon",
    "min_lr": "final_lr",
    "n_embd": "width",
    "n_layer": "layers",
}
"""What others call a setting: nanoGPT, torch and HF."""


def _hint(name: str) -> str:
    """Return what an unknown setting may have been meant to be."""
    if name in _ELSEWHERE:
        return f"it is called {_ELSEWHERE[name]} there"
    close = difflib.get_close_matches(name, [*FIELDS, *_ELSEWHERE], n=1)
    if not close:
        return "docs/check.md lists all of them"
    own = f", which is called {_ELSEWHERE[close[0]]} there" if close[0] in _ELSEWHERE else ""
    return f"did you mean {close[0]!r}{own}?"


def _typed(source: str, name: str, value: Any) -> Any:
    """Return the value in the type of its field; raise UnreadablePlan if it does not fit."""
    hint = _TYPES[name]
    kind = next(k for k in (get_args(hint) or (hint,)) if k is not types.NoneType)
    if name == "lr_points":
        return _points(source, value)
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str):
        return value.lower()
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if numeric and (kind is float or (kind is int and float(value).is_integer())):
        return kind(value)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value in set(kind):
            return kind(value)
        raise UnreadablePlan(f"{source}: {name} is {value!r}; it can be {', '.join(kind)}")
    wanted = {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "text")
    raise UnreadablePlan(f"{source}: {name} is {value!r}, which is not {wanted}")


def _points(source: str, value: Any) -> tuple[tuple[int, float], ...]:
    try:
        points = tuple((int(step), float(rate)) for step, rate in value)
    except (TypeError, ValueError):
        points = ()
    if len(points) < 2:
        raise UnreadablePlan(
            f"{source}: lr_points must be two or more pairs [step, rate], got {value!r}"
        )
    return points


# A list or a text of JSON is one of TOML and of YAML too.
_LINES = {
    Syntax.JSON: '"{name}": {value},',
    Syntax.TOML: "{name} = {value}",
    Syntax.YAML: "{name}: {value}",
}


def _spelling(name: str, line: str) -> Spelling:
    return lambda value: line.format(name=name, value=json.dumps(value))


DIALECTS = {
    syntax: Dialect(
        name="training plan", spellings={name: _spelling(name, line) for name in FIELDS}
    )
    for syntax, line in _LINES.items()
}
