"""The line of each setting in a JSON or TOML file, which their parsers do not report."""

import json
import re
from collections.abc import Mapping
from typing import Any

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(?P<colon>\s*:)?|[{}\[\]]|\n')
_TOML_KEY = re.compile(r"([\w.\-]+|\"[^\"]+\")\s*=")


def json_lines(text: str) -> dict[str, int]:
    """Dotted path of every key to its line; an item of a list adds nothing to a path."""
    lines: dict[str, int] = {}
    above: list[str] = []
    key, line = "", 1
    for token in _JSON_TOKEN.finditer(text):
        piece = token.group()
        if token["colon"] is not None:
            key = json.loads(piece.removesuffix(":"))
            lines.setdefault(_dotted([*above, key]), line)
            line += token["colon"].count("\n")
            continue
        if piece == "\n":
            line += 1
        elif piece in "{[":
            above.append(key)
            key = ""
        elif piece in "}]":
            key = ""
            if above:
                above.pop()
    return lines


def toml_lines(text: str) -> dict[str, int]:
    """Dotted path of every key that begins a line to that line."""
    lines: dict[str, int] = {}
    table = ""
    for count, line in enumerate(text.splitlines(), start=1):
        bare = line.split("#", 1)[0].strip()
        if bare.startswith("[") and bare.endswith("]"):
            table = re.sub(r"[\s\"'\[\]]", "", bare)
            continue
        key = _TOML_KEY.match(bare)
        if key:
            lines.setdefault(_dotted([table, key[1].strip('"')]), count)
    return lines


def flatten(tree: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """A tree of tables as one table with dotted names; of a list of tables, the first is used."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = _dotted([above, str(key)])
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            value = value[0]
        if isinstance(value, Mapping):
            flat.update(flatten(value, name))
        else:
            flat[name] = value
    return flat


def _dotted(parts: list[str]) -> str:
    return ".".join(part for part in parts if part)
