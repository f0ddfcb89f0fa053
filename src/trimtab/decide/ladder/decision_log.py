"""decisions.jsonl: one line per decision, with everything that it was made from.

A decision depends on nothing but its situation and the settings, and both are in the line: so it
can be computed again, by this version or by a later one.
"""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.core.config import LadderConfig
from trimtab.core.jsonable import to_jsonable, to_number
from trimtab.decide.ladder.decide import decide
from trimtab.decide.ladder.decision import Decision
from trimtab.decide.ladder.situation import Act, SettingDifference, Situation

_NUMBERS = ("certainty", "probe", "rise", "loss_excess", "loss_noise", "slope")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A decision that is not what its situation gives now."""

    line: int
    written: Mapping[str, Any]
    computed: Mapping[str, Any]


class DecisionLog:
    """Appends decisions to a file."""

    def __init__(self, path: Path, config: LadderConfig) -> None:
        self._path = path
        self._config = config

    def append(self, situation: Situation, decision: Decision) -> None:
        """Write one decision."""
        line = {"situation": situation, "settings": self._config, "decision": decision}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(to_jsonable(line)) + "\n")


def read_decisions(path: Path) -> list[tuple[Situation, Act]]:
    """The situations of a file and what was decided; lines that are damaged are left out."""
    found = []
    for line in _lines(path):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            act = Act(entry["decision"]["chosen"]["act"])
            found.append((situation_from_json(entry["situation"]), act))
    return found


def recompute(path: Path) -> tuple[int, list[Mismatch]]:
    """How many decisions a file has, and those that its situations do not give."""
    lines = _lines(path)
    mismatches = []
    for number, line in enumerate(lines, start=1):
        entry = json.loads(line)
        config = LadderConfig.from_dict(entry["settings"])
        computed = to_jsonable(decide(situation_from_json(entry["situation"]), config))
        if computed != entry["decision"]:
            mismatches.append(Mismatch(line=number, written=entry["decision"], computed=computed))
    return len(lines), mismatches


def situation_from_json(values: Mapping[str, Any]) -> Situation:
    """The situation that `to_jsonable` wrote."""
    found = dict(values)
    for name in ("symptoms", "signals", "slots"):
        found[name] = tuple(found[name])
    for name in _NUMBERS:
        found[name] = None if found[name] is None else to_number(found[name])
    found["healthy"] = tuple(to_number(value) for value in found["healthy"])
    found["tried"] = tuple(Act(act) for act in found["tried"])
    found["differences"] = tuple(
        SettingDifference(
            **{**part, "before": _value(part["before"]), "after": _value(part["after"])}
        )
        for part in found["differences"]
    )
    positions = found["positions"]
    found["positions"] = None if positions is None else (positions[0], positions[1])
    return Situation(**found)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _value(value: Any) -> Any:
    """A setting as it was: lists were tuples, and "NaN" may be a number."""
    if isinstance(value, list):
        return tuple(_value(part) for part in value)
    if isinstance(value, str):
        number = to_number(value)
        return value if number is None else number
    return value
