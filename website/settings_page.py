"""The reference of settings, from the dataclasses of `core/config.py` and their field docs."""

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from trimtab.core.config import Config, Section


def settings_text() -> str:
    """Each setting with its name, its default and what it does, in one table."""
    head = ["| setting | default | meaning and source |", "| --- | --- | --- |"]
    return "\n".join([*head, *_rows("", Config())])


def _rows(name: str, section: Section) -> Iterator[str]:
    docs = field_docs(type(section))
    sections: list[tuple[str, Section]] = []
    for field in dataclasses.fields(section):  # type: ignore[arg-type]
        value = getattr(section, field.name)
        full = f"{name}.{field.name}" if name else field.name
        if isinstance(value, Section):
            sections.append((full, value))
        else:
            yield f"| `{full}` | `{_toml(value)}` | {docs[field.name]} |"
    for full, value in sections:
        yield from _rows(full, value)


def field_docs(owner: type) -> dict[str, str]:
    """The docstring under each field of a class, as one line."""
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(owner)))
    body = tree.body[0].body
    return {
        ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
    }


def _toml(value: Any) -> str:
    """A value as it is written in TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return f'"{value}"' if isinstance(value, str) else str(value)
