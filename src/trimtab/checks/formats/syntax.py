"""The syntaxes of configs: their settings, and the line of each, which most parsers do not report.

YAML needs the extra `yaml`, and only plain data is built: a tag that asks for a Python object is an
error. Scripts are parsed, never executed: known are flags with their values, continued lines,
comments, and variables that the script itself gives a plain value: `LR=3e-4`, `${LR:-3e-4}`,
`$((TOKENS / LENGTH))`.
"""

import ast
import json
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.core.errors import MissingExtra, UnreadablePlan

_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"(?P<colon>\s*:)?|[{}\[\]]|\n')
_TOML_KEY = re.compile(r"([\w.\-]+|\"[^\"]+\")\s*=")


def json_lines(text: str) -> dict[str, int]:
    """Map the dotted path of every key to its line; an item of a list adds nothing to a path."""
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
    """Map the dotted path of every key that begins a line to that line."""
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
    """Return a tree of tables as one table with dotted names, of a list of tables the first."""
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


_COMMENT = re.compile(r"(^|\s)#.*$")
_FLAG = re.compile(r"--([A-Za-z][\w\-]*)(?:=(.*))?$")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)$")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
_SUM = re.compile(r"\$\(\(([^()]*)\)\)")
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}
_LONGEST_SUM = 80
"""Characters of arithmetic that are evaluated; scripts written by hand have less."""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags of a script."""

    values: Mapping[str, str]
    """Name without dashes to value; "" for a flag without one. The last of several counts."""
    lines: Mapping[str, int]
    unresolved: tuple[str, ...]
    """Flags whose value is not known without running the script."""


def read_flags(text: str) -> Flags:
    """Read all flags of a text and the lines that they are on."""
    variables: dict[str, str] = {}
    values: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    flag = ""
    for count, line in enumerate(text.splitlines(), start=1):
        # A value may be on the next line, but only after a backslash or in a list.
        for word in _words(line):
            assigned = _ASSIGNED.match(word)
            given = _FLAG.match(word)
            if given:
                flag = given[1].replace("_", "-")
                values[flag] = [_resolve(given[2], variables)] if given[2] else []
                lines[flag] = count
            elif assigned and not flag:
                variables[assigned[1]] = _resolve(assigned[2], variables)
            elif flag:
                values[flag].append(_resolve(word, variables))
        if not line.rstrip().endswith("\\"):
            flag = ""
    joined = {name: " ".join(word for word in parts if word) for name, parts in values.items()}
    unresolved = tuple(name for name, value in joined.items() if "$" in value)
    known = {name: value for name, value in joined.items() if "$" not in value}
    return Flags(known, lines, unresolved)


def _words(line: str) -> list[str]:
    """Return the words of a line without quotes, brackets, comments and line continuations."""
    line = _SUM.sub(lambda found: found[0].replace(" ", ""), _COMMENT.sub("", line))
    line = line.rstrip().removesuffix("\\")
    words = line.replace('"', " ").replace("'", " ").replace("export ", "").split()
    # `NAME=(` begins a list; `--flag: value` is how Megatron-LM's own tests write it.
    bare = [word if "$(" in word else word.strip("(),").rstrip(":") for word in words]
    return [word for word in bare if word]


def _resolve(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with known variables and plain arithmetic resolved."""

    def lookup(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        return variables.get(name, found[0] if found[3] is None else found[3])

    def evaluate(found: re.Match[str]) -> str:
        terms = re.sub(
            r"\b([A-Za-z_]\w*)\b", lambda name: variables.get(name[1], name[1]), found[1]
        )
        result = _evaluate(terms.replace("$", ""))
        return found[0] if result is None else str(result)

    return _SUM.sub(evaluate, _VARIABLE.sub(lookup, text))


def _evaluate(terms: str) -> int | None:
    """Evaluate whole-number arithmetic; None if it is anything else."""
    try:
        if len(terms) > _LONGEST_SUM:
            return None
        return _value(ast.parse(terms, mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, KeyError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp):
        result: int = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        return result
    raise ValueError("not plain arithmetic")


MAX_NODES, MAX_DEPTH = 100_000, 50
"""A config has a few hundred settings; without a limit, nested aliases could fill the memory."""


def load_yaml(text: str, source: str) -> tuple[Any, dict[str, int]]:
    """Return the content of a YAML document, and the dotted path of each key with its line."""
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise MissingExtra.of(f"{source} is YAML, which needs PyYAML", "yaml") from error

    class Loader(yaml.SafeLoader):
        """Reads 3e-4 as a number, as YAML 1.2 does; in YAML 1.1 it is text."""

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
        list("-+.0123456789"),
    )
    lines: dict[str, int] = {}
    try:
        loader = Loader(text)  # raises for characters that YAML does not allow
        try:
            node = loader.get_single_node()
            if node is None:
                return None, lines
            _find_lines(node, lines)
            return loader.construct_document(node), lines
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UnreadablePlan(f"{source} cannot be read as YAML: {reason}") from error


def _find_lines(root: Any, lines: dict[str, int]) -> None:
    """Collect the line of each key below a node; an item of a list adds nothing to a path."""
    waiting = [(root, "", 0)]
    num_nodes = 0
    while waiting:
        node, path, depth = waiting.pop()
        num_nodes += 1
        if num_nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ValueError(
                f"it has more than {MAX_NODES} values or {MAX_DEPTH} levels, aliases included"
            )
        if node.id == "mapping":
            for key, value in node.value:
                merged = key.tag == "tag:yaml.org,2002:merge"
                below = path if merged else f"{path}.{key.value}".lstrip(".")
                if not merged:
                    lines.setdefault(below, key.start_mark.line + 1)
                    if key.id == "scalar":
                        key.tag = "tag:yaml.org,2002:str"  # YAML 1.1 reads the key off as false
                waiting.append((value, below, depth + 1))
        elif node.id == "sequence":
            waiting += [(item, path, depth + 1) for item in node.value]
