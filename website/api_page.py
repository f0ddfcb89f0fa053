"""The reference of the API, from the signatures and docstrings of what is public."""

import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

GROUPS = {
    "Logs": ("trimtab.diagnose", "trimtab.read_log", "trimtab.RunReport", "trimtab.Diagnosis"),
    "Training loops": (
        "trimtab.watch",
        "trimtab.live.guard.Guard",
        "trimtab.record",
        "trimtab.RunLog",
        "trimtab.Checkpoints",
        "trimtab.check",
    ),
    "Trainers": (
        "trimtab.integrations.hf.TrimtabCallback",
        "trimtab.integrations.hf.last_good_checkpoint",
        "trimtab.integrations.accelerate.watch",
        "trimtab.integrations.lightning.TrimtabCallback",
        "trimtab.integrations.lightning.last_good_checkpoint",
    ),
    "Records of your own": (
        "trimtab.Judge",
        "trimtab.Block",
        "trimtab.Column",
        "trimtab.Event",
        "trimtab.Finding",
        "trimtab.Incident",
    ),
    "Settings and errors": ("trimtab.Config", "trimtab.TrimtabError"),
}
"""What is shown, by its import path."""

IN_FULL = {
    "trimtab.diagnose",
    "trimtab.RunReport",
    "trimtab.watch",
    "trimtab.live.guard.Guard",
    "trimtab.Checkpoints",
    "trimtab.check",
}
"""Names with a heading of their own, their arguments and their members; the others are a line."""

FOR_TRIMTAB = {
    "skip_resume_audit",
    "note_random_state",
    "is_first_rank",
    "entries",
    "attach",
    "proven_step",
    "read_verdicts",
    "give_up_after",
    "judged",
    "most_severe",
    "package_of",
}
"""Members that other rooms of trimtab use, which are not promised to anybody."""

READ_ONLY = {"trimtab.RunReport", "trimtab.Diagnosis", "trimtab.Finding", "trimtab.Incident"}
"""Values that trimtab makes."""


def api_text() -> str:
    """Each public name with its parameters, the first sentences of its docs, and its methods."""
    return "\n\n".join(part for title, names in GROUPS.items() for part in _group(title, names))


def _group(title: str, names: tuple[str, ...]) -> Iterator[str]:
    yield f"## {title}"
    short = [f"- {_signature(name)}" for name in names if name not in IN_FULL]
    if short:
        yield "\n".join(short)
    for name in names:
        if name in IN_FULL:
            owner = _named(name)
            lines = [*_arguments(inspect.getdoc(owner) or ""), *_members(owner)]
            yield f"### {name.replace('.live.guard', '')}"
            yield _signature(name)
            yield "\n".join(lines)


def _named(path: str) -> Any:
    module, name = path.rsplit(".", 1)
    return getattr(import_module(module), name)


def _signature(path: str) -> str:
    """What a name is, with its parameters where users call it."""
    owner, shown = _named(path), path.replace(".live.guard", "")
    said = _first(inspect.getdoc(owner) or "")
    is_made_by_trimtab = path in READ_ONLY or shown == "trimtab.Guard"
    if is_made_by_trimtab or (inspect.isclass(owner) and issubclass(owner, Exception)):
        return f"`{shown}`: {said}"
    return f"`{shown}({_parameters(owner)})`: {said}"


def _arguments(doc: str) -> Iterator[str]:
    """The arguments that a docstring describes, a line each."""
    _, found, text = doc.partition("\nArgs:\n")
    if not found:
        return
    text = re.split(r"\n\n(?=\S)", text)[0]
    for name, said in re.findall(r"(?ms)^    (\w+): (.*?)(?=^    \w|\Z)", text):
        line = " ".join(said.split()).replace(": - ", ": ").replace("; - ", "; ")
        yield f"- `{name}`: {line}"


def _members(owner: Any) -> Iterator[str]:
    """What an instance can be asked, a line each."""
    if not inspect.isclass(owner):
        return
    for name, member in vars(owner).items():
        is_shown = not name.startswith("_") and name not in FOR_TRIMTAB
        said = _first(inspect.getdoc(member) or "") if is_shown else ""
        if said and isinstance(member, property | cached_property):
            yield f"- `{name}`: {said}"
        elif said and inspect.isfunction(member):
            yield f"- `{name}({_parameters(member)})`: {said}"


def _first(doc: str) -> str:
    return " ".join(doc.split("\n\n")[0].split())


def _parameters(called: Any) -> str:
    """The names of the parameters, with short defaults and without types."""
    shown = []
    is_keyword = False
    for one in inspect.signature(called).parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not is_keyword:
            shown.append("*")
        is_keyword = is_keyword or one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = "*" * (one.kind is one.VAR_POSITIONAL) + "**" * (one.kind is one.VAR_KEYWORD)
        shown.append(stars + one.name + _shown_default(one.default))
    return ", ".join(shown)


def _shown_default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    text = repr(getattr(value, "value", value))
    return f"={text}" if len(text) <= 12 and "<" not in text else "=..."
