"""Open a training config of any known format. Nothing in it is ever executed or unpickled."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from trimtab.check.formats import hf, megatron, torchtitan
from trimtab.check.formats.places import json_lines, toml_lines
from trimtab.check.formats.plain import FIELDS, read_own, typed_settings
from trimtab.check.formats.shell import read_flags
from trimtab.check.reading import Reading
from trimtab.core.config import CheckConfig
from trimtab.core.errors import UnreadablePlan

LARGEST_FILE = 4_000_000
"""Bytes. Configs are small; a file beyond this is a log or a checkpoint."""

KNOWN = (
    "HF TrainingArguments (JSON, or flags in a script), torchtitan (TOML or JSON), Megatron-LM "
    "arguments (flags in a script), or a [training] table in TOML (docs/check.md)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """Where a config came from, and what is known beside it."""

    source: str
    lines: Mapping[str, int] = field(default_factory=dict)
    toml: bool = False
    steps: int | None = None
    """The number of steps, for a format that may not hold it."""


def read_config(
    config: str | PathLike[str] | Mapping[str, Any] | object,
    known: Mapping[str, Any] | None = None,
) -> Reading:
    """Read a config: a file, a mapping, or an instance of HF's TrainingArguments.

    `known` has what the config does not say, by the names of `TrainingPlan`; it stands above the
    config. Raises UnreadablePlan for a config of no known format.
    """
    told = typed_settings(known or {}, "--set")
    reading = _read(config, told.get("steps"))
    return replace(reading, plan=replace(reading.plan, **told)) if told else reading


def _read(config: str | PathLike[str] | Mapping[str, Any] | object, steps: int | None) -> Reading:
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


def _read_file(path: Path, steps: int | None) -> Reading:
    text = _read_text(path)
    document = _Document(source=str(path), steps=steps)
    if text.lstrip().startswith("{"):
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UnreadablePlan(f"{path} begins like JSON and is none: {error}") from error
        return _read_tree(tree, replace(document, lines=json_lines(text)))
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if path.suffix.lower() == ".toml":
            raise UnreadablePlan(f"{path} cannot be read as TOML: {error}") from error
        return _read_flags(text, document)
    return _read_tree(table, replace(document, lines=toml_lines(text), toml=True))


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


def _read_flags(text: str, document: _Document) -> Reading:
    source = document.source
    flags = read_flags(text)
    names = flags.values.keys() | set(flags.unresolved)
    if names & megatron.MARKS:
        return megatron.read_megatron(flags, source=source)
    underscored = {name.replace("-", "_"): value for name, value in flags.values.items()}
    if underscored.keys() & hf.MARKS:
        lines = {name.replace("-", "_"): line for name, line in flags.lines.items()}
        return hf.read_hf(underscored, source=source, lines=lines, flags=True, steps=document.steps)
    raise UnreadablePlan(f"{source} is of no known format; known: {KNOWN}")


def _read_tree(tree: Mapping[str, Any], document: _Document) -> Reading:
    source, lines = document.source, document.lines
    if tree.keys() & hf.MARKS:
        return hf.read_hf(tree, source=source, lines=lines, steps=document.steps)
    ours = tree.get("tool", {}).get("trimtab", tree)
    training = ours.get("training")
    if tree.keys() & torchtitan.TABLES:
        return torchtitan.read_torchtitan(tree, source=source, lines=lines, toml=document.toml)
    if isinstance(training, Mapping):
        own_lines = {
            name.removeprefix("tool.trimtab.").removeprefix("training."): line
            for name, line in lines.items()
            if name.removeprefix("tool.trimtab.").startswith("training.")
        }
        settings = CheckConfig.from_dict(ours.get("check", {}))
        return read_own(
            training, source=source, lines=own_lines, toml=document.toml, off=settings.off
        )
    if tree.keys() & FIELDS:
        return read_own(tree, source=source, lines=lines, toml=document.toml)
    raise UnreadablePlan(f"{source} is of no known format; known: {KNOWN}")
