"""Open a training config of any known format. Nothing in it is ever executed or unpickled."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from trimtab.check import hf, megatron, torchtitan
from trimtab.check.own import FIELDS, read_own
from trimtab.check.places import json_lines, toml_lines
from trimtab.check.reading import Reading
from trimtab.check.shell import read_flags
from trimtab.core.config import CheckConfig
from trimtab.core.errors import UnreadablePlan

LARGEST_FILE = 4_000_000
"""Bytes. Configs are small; a file beyond this is a log or a checkpoint."""

KNOWN = (
    "HF TrainingArguments (JSON, or flags in a script), torchtitan (TOML or JSON), Megatron-LM "
    "arguments (flags in a script), or a [training] table in TOML (docs/check.md)"
)


def read_config(config: str | PathLike[str] | Mapping[str, Any] | object) -> Reading:
    """Read a config: a file, a mapping, or an instance of HF's TrainingArguments.

    Raises UnreadablePlan if it is of no known format.
    """
    if isinstance(config, Mapping):
        return _read_tree(config, source="mapping", lines={}, toml=False)
    if isinstance(config, str | PathLike):
        return _read_file(Path(config))
    if hasattr(config, "to_dict"):
        return _read_tree(config.to_dict(), source=type(config).__name__, lines={}, toml=False)
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return _read_tree(
            dataclasses.asdict(config), source=type(config).__name__, lines={}, toml=False
        )
    raise UnreadablePlan(f"a {type(config).__name__} is not a training config; known: {KNOWN}")


def _read_file(path: Path) -> Reading:
    text = _read_text(path)
    source = str(path)
    if text.lstrip().startswith("{"):
        try:
            tree = json.loads(text)
        except ValueError as error:
            raise UnreadablePlan(f"{path} begins like JSON and is none: {error}") from error
        return _read_tree(tree, source=source, lines=json_lines(text), toml=False)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if path.suffix.lower() == ".toml":
            raise UnreadablePlan(f"{path} cannot be read as TOML: {error}") from error
        return _read_flags(text, path)
    return _read_tree(table, source=source, lines=toml_lines(text), toml=True)


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


def _read_flags(text: str, path: Path) -> Reading:
    flags = read_flags(text)
    names = flags.values.keys() | set(flags.unresolved)
    if names & megatron.MARKS:
        return megatron.read_megatron(flags, source=str(path))
    underscored = {name.replace("-", "_"): value for name, value in flags.values.items()}
    if underscored.keys() & hf.MARKS:
        lines = {name.replace("-", "_"): line for name, line in flags.lines.items()}
        return hf.read_hf(underscored, source=str(path), lines=lines, flags=True)
    raise UnreadablePlan(f"{path} is of no known format; known: {KNOWN}")


def _read_tree(
    tree: Mapping[str, Any], *, source: str, lines: Mapping[str, int], toml: bool
) -> Reading:
    if tree.keys() & hf.MARKS:
        return hf.read_hf(tree, source=source, lines=lines)
    ours = tree.get("tool", {}).get("trimtab", tree)
    training = ours.get("training")
    if tree.keys() & torchtitan.TABLES:
        return torchtitan.read_torchtitan(tree, source=source, lines=lines, toml=toml)
    if isinstance(training, Mapping):
        own_lines = {
            name.removeprefix("tool.trimtab.").removeprefix("training."): line
            for name, line in lines.items()
            if name.removeprefix("tool.trimtab.").startswith("training.")
        }
        settings = CheckConfig.from_dict(ours.get("check", {}))
        return read_own(training, source=source, lines=own_lines, off=settings.off)
    if tree.keys() & FIELDS:
        return read_own(tree, source=source, lines=lines)
    raise UnreadablePlan(f"{source} is of no known format; known: {KNOWN}")
