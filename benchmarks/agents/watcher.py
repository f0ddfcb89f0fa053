"""An agent without a model: it looks at runs in turn, and decides to go on, stop or roll back.

It knows nothing of losses. What it is told is the answer of a judge; it believes an act that stands
at two looks in a row, and never asks about a run again once it has decided.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

Ask = Callable[[str, str], Awaitable[str]]
"""Asks a judge about a run, with the token of the answer before; returns the answer, in JSON."""

CALM = ("none", "wait", "continue")
LOOKS = 2
"""Looks at which an act must stand."""


@dataclass(slots=True)
class Watched:
    """A run as the agent knows it."""

    name: str
    token: str = ""
    looks: int = 0
    """Looks in a row at which an act stood."""
    decision: str = "continue"
    step: int | None = None
    """The newest step at the decision."""


class Agent:
    """Looks at every run that it has not decided on."""

    def __init__(self, ask: Ask, names: Sequence[str]) -> None:
        self._ask = ask
        self.runs = [Watched(name) for name in names]
        self.num_calls = self.num_bytes = 0

    async def look(self) -> None:
        """Ask about each run once, and decide."""
        for run in self.runs:
            if run.decision != "continue":
                continue
            text = await self._ask(run.name, run.token)
            self.num_calls += 1
            self.num_bytes += len(text)
            answer: dict[str, Any] = json.loads(text)
            run.token = answer.get("token", "")
            run.looks = 0 if answer["act"] in CALM else run.looks + 1
            if run.looks >= LOOKS:
                run.decision, run.step = answer["act"], answer.get("step")
