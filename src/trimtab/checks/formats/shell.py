"""Flags out of a shell script or a list of arguments; parsed, never executed.

Known are flags with their values, continued lines, comments, and variables that the script itself
gives a plain value: `LR=3e-4`, `${LR:-3e-4}`, `$((TOKENS / LENGTH))`. All else is left alone.
"""

import ast
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

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
    """All flags of a text and the lines that they are on."""
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
    """The words of a line without quotes, brackets, comments and line continuations."""
    line = _SUM.sub(lambda found: found[0].replace(" ", ""), _COMMENT.sub("", line))
    line = line.rstrip().removesuffix("\\")
    words = line.replace('"', " ").replace("'", " ").replace("export ", "").split()
    # `NAME=(` begins a list; `--flag: value` is how Megatron-LM's own tests write it.
    bare = [word if "$(" in word else word.strip("(),").rstrip(":") for word in words]
    return [word for word in bare if word]


def _resolve(text: str, variables: Mapping[str, str]) -> str:
    """The text with known variables and plain arithmetic put in."""

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
    """Whole-number arithmetic, or None if it is anything else."""
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
