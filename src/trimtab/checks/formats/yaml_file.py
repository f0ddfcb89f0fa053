"""A YAML config as a tree, and the line of each setting. Needs the extra `yaml`.

Only plain data is built: a tag that asks for a Python object is an error.
"""

import re
from typing import Any

import yaml

from trimtab.core.errors import UnreadablePlan

MAX_NODES = 100_000
MAX_DEPTH = 50
"""A config has a few hundred settings; without a limit, nested aliases could fill the memory."""


class _Loader(yaml.SafeLoader):
    """Reads 3e-4 as a number, as YAML 1.2 does; in YAML 1.1 it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def load_yaml(text: str, source: str) -> tuple[Any, dict[str, int]]:
    """The content of a document, and the dotted path of each key with its line."""
    try:
        return _load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UnreadablePlan(f"{source} cannot be read as YAML: {reason}") from error


def _load(text: str) -> tuple[Any, dict[str, int]]:
    loader = _Loader(text)  # raises for characters that YAML does not allow
    try:
        node = loader.get_single_node()
        lines: dict[str, int] = {}
        if node is not None:
            _find_lines(node, lines)
        return (None if node is None else loader.construct_document(node)), lines
    finally:
        loader.dispose()


def _find_lines(root: yaml.Node, lines: dict[str, int]) -> None:
    """Collect the line of each key; an item of a list adds nothing to a path."""
    waiting = [(root, "", 0)]
    num_nodes = 0
    while waiting:
        node, path, depth = waiting.pop()
        num_nodes += 1
        if num_nodes > MAX_NODES or depth > MAX_DEPTH:
            raise ValueError(
                f"it has more than {MAX_NODES} values or {MAX_DEPTH} levels, aliases included"
            )
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                merged = key.tag == "tag:yaml.org,2002:merge"
                below = path if merged else f"{path}.{key.value}".lstrip(".")
                if not merged:
                    lines.setdefault(below, key.start_mark.line + 1)
                    if isinstance(key, yaml.ScalarNode):
                        key.tag = "tag:yaml.org,2002:str"  # YAML 1.1 reads the key off as false
                waiting.append((value, below, depth + 1))
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(item, path, depth + 1) for item in node.value]
