"""Open a training config of any known format. Nothing in it is ever executed or unpickled."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from trimtab.checks.formats import hf, megatron, torchtitan
from trimtab.checks.formats.reading import ConfigReading, Syntax
from trimtab.checks.formats.syntax import json_lines, load_yaml, read_flags, toml_lines
from trimtab.checks.formats.training_table import FIELDS, read_training_table, typed_settings
from trimtab.core.config import CheckConfig
from trimtab.core.errors import UnreadablePlan

LARGEST_FILE = 4_000_000
"""Bytes. Configs are small; a file beyond this is a log or a checkpoint."""

KNOWN = (
    "HF TrainingArguments (JSON, YAML, or flags in a script), axolotl (YAML), torchtitan (TOML, "
    "JSON or YAML), Megatron-LM arguments (flags in a script), or a [training] table in TOML, JSON "
    "or YAML"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """Where a config came from, and what else is known about it."""

    source: str
    lines: Mapping[str, int] = field(default_factory=dict)
    syntax: Syntax = Syntax.JSON
    steps: int | None = None
    """The number of steps, for a format that may not hold it."""


def read_config(
    config: str | PathLike[str] | Mapping[str, Any] | object, known: Mapping[str, Any] | None = None
) -> ConfigReading:
    """Read a config: a file, a mapping, or an instance of HF's TrainingArguments.

    `known` holds settings by the names of `TrainingPlan`; they override the
    config. Raises UnreadablePlan for a config of no known format.
    """
    try:
        settings = typed_settings(known or {}, "--set")
        reading = _read(config, settings.get("steps"))
    except (OverflowError, ValueError) as error:  # steps or shares that are infinite or NaN
        source = config if isinstance(config, str | PathLike) else type(config).__name__
        raise UnreadablePlan(f"{source} has a number that no run can use: {error}") from error
    return replace(reading, plan=replace(reading.plan, **settings)) if settings else reading


def _read(
    config: str | PathLike[str] | Mapping[str, Any] | object, steps: int | None
) -> ConfigReading:
    if isinstance(config, Mapping):
        return _read_tree(config, _Document(source="mapping", steps=steps))
    if isinstance(config, str | PathLike):
        return _read_file(Path(config), steps)
    document = _Document(source=type(config).__name__, steps=steps)
    if hasattr(config, "to_dict"):
        return _read_tree(config.to_dict(), document)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return _read_tree(dataclasses.asdict(config), document)
    raise UnreadablePlan(f"a {type(config).__name__} is not a training config; known: {KNOWN}")


def _read_file(path: Path, steps: int | None) -> ConfigReading:
    text = _read_text(path)
    document = _Document(source=str(path), steps=steps)
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


def _read_yaml(text: str, document: _Document) -> ConfigReading:
    if (
        read_flags(text).values.keys() & megatron.TABLE.marks
    ):  # flags as keys, as in Megatron-LM's tests
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


def _read_flags(text: str, document: _Document) -> ConfigReading:
    source = document.source
    flags = read_flags(text)
    names = flags.values.keys() | set(flags.unresolved)
    if names & megatron.TABLE.marks:
        return megatron.read_megatron(flags, source=source)
    underscored = {name.replace("-", "_"): value for name, value in flags.values.items()}
    if underscored.keys() & hf.TABLE.marks:
        lines = {name.replace("-", "_"): line for name, line in flags.lines.items()}
        return hf.read_hf(
            underscored, source=source, lines=lines, dialect=hf.HF_FLAGS, steps=document.steps
        )
    raise UnreadablePlan(f"{source} has no known format; give {KNOWN}")


def _read_tree(tree: Mapping[str, Any], document: _Document) -> ConfigReading:
    source, lines = document.source, document.lines
    if tree.keys() & hf.AXOLOTL_MARKS:
        return hf.read_axolotl(tree, source=source, lines=lines, steps=document.steps)
    if tree.keys() & hf.TABLE.marks:
        dialect = hf.HF_YAML if document.syntax is Syntax.YAML else hf.HF_JSON
        return hf.read_hf(tree, source=source, lines=lines, dialect=dialect, steps=document.steps)
    tool = tree.get("tool")
    ours = tool.get("trimtab", tree) if isinstance(tool, Mapping) else tree
    training = ours.get("training")
    if tree.keys() & torchtitan.TABLE.marks:  # before ours: torchtitan has a [training] table, too
        return torchtitan.read_torchtitan(tree, source=source, lines=lines, syntax=document.syntax)
    if isinstance(training, Mapping):
        table_lines = {
            name.removeprefix("tool.trimtab.").removeprefix("training."): line
            for name, line in lines.items()
            if name.removeprefix("tool.trimtab.").startswith("training.")
        }
        settings = CheckConfig.from_dict(ours.get("check", {}), "check")
        return read_training_table(
            training, source=source, lines=table_lines, syntax=document.syntax, off=settings.off
        )
    if tree.keys() & FIELDS:
        return read_training_table(tree, source=source, lines=lines, syntax=document.syntax)
    raise UnreadablePlan(f"{source} has no known format; give {KNOWN}")
