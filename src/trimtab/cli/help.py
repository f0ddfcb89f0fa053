"""Commands: errors as exit codes, help without Python's types (`--json`, not `--json <bool>`)."""

import re
from difflib import get_close_matches
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

_KINDS = {"int": "N", "float": "NUMBER", "str": "TEXT", "path": "PATH", "file": "FILE"}


class Command(TyperCommand):
    """A command that reports errors, and whose help shows what to type, not its type."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # The terminal wraps a paragraph, not the source.
        self.help = re.sub(r"(?<!\n)\n(?!\n)", " ", self.help or "")

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what trimtab refuses is a message and an exit code."""
        from trimtab.cli import output

        with output.reported_errors():
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; what cannot be right is said without the words of Python's types."""
        try:
            return list(super().parse_args(ctx, args))
        except typer.BadParameter as error:
            error.message = _plain_message(error)
            raise

    def get_params(self, ctx: Any) -> list[Any]:
        return [_without_type(param) for param in super().get_params(ctx)]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the arguments without braces, which mean a choice elsewhere."""
        return [
            piece.strip("{}").replace("}...", "...") for piece in super().collect_usage_pieces(ctx)
        ]


class Group(TyperGroup):
    """A group of commands, with the same help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return [_without_type(param) for param in super().get_params(ctx)]


class App(typer.Typer):
    """An application all of whose commands have this help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"cls": Group, **options})

    def command(self, name: str | None = None, **options: Any) -> Any:
        return super().command(name, **{"cls": Command, **options})


_WANTED = {"float_parsing": "a number", "int_parsing": "a whole number"}
"""What pydantic could not read, by its name for the error."""


def _plain_message(error: typer.BadParameter) -> str:
    """Return the message of a bad value, without pydantic's wording, which typer has from 0.27."""
    problems = getattr(error.__cause__, "errors", None)
    if problems is None:
        return str(error.message)
    problem = problems()[0]
    kind, given = problem["type"], str(problem["input"])
    if kind in _WANTED:
        return f"{given!r} is not {_WANTED[kind]}"
    if kind == "greater_than_equal":
        return f"it must be {problem['ctx']['ge']:g} or more, got {given}"
    message = str(error.message).removeprefix("Value error, ").rstrip(".")
    near = get_close_matches(given, re.findall(r"'([^']+)'", message)[1:], n=1)
    return f"{message}; did you mean {near[0]!r}?" if near else message


def _without_type(param: Any) -> Any:
    show = getattr(param, "display_type_rich", None)  # new in typer 0.27
    if show is not None and not hasattr(param, "_trimtab_shows"):
        is_flag = getattr(param, "is_flag", False)
        is_argument = param.param_type_name == "argument"
        param._trimtab_shows = True
        if is_argument and param.metavar is None:
            param.metavar = param.name.upper()
        param._get_number_range_help_str = lambda: None
        param.display_type_rich = lambda ctx: "" if is_flag or is_argument else _plain(show(ctx))
    return param


def _plain(kind: str | None) -> str:
    name = (kind or "").strip("<>").removesuffix(" range")
    return _KINDS.get(name, name)
