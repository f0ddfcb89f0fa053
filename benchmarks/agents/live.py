"""The agent beside twenty runs that grow, on two judges: trimtab's tools, and W&B's rule.

The runs are public ones, written as journals row by row: between two looks of the agent each grows
by a 25th. trimtab answers over stdio as a server of its own; W&B's rule sees all rows so far.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import mcp
import numpy as np

from benchmarks.agents.cases import ACT, Case
from benchmarks.agents.contenders import sampled_rows, wandb_answer, wandb_diagnosis
from benchmarks.results import Headline, table
from trimtab.core.block import Block
from trimtab.core.signals import LOSS
from trimtab.journal import JournalWriter, RunDirectory
from trimtab.readers import read_log

ROUNDS = 25
OTHER, WARY = "W&B's rule", "W&B's rule, 'converged' left out"
MOST_ROWS = 2500
AFTER = 150
"""Records after the end of a spike at which a run ends."""

WANTED = {"healthy": 8, "came back": 6, "lost": 6}
SETTLE_SECONDS = 0.6
"""After each round: a journal is written by a thread of its own."""

UNCHANGED_CALLS = 50


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


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that will grow, and whether somebody has to act on it."""

    name: str
    case: Case
    block: Block

    @property
    def is_lost(self) -> bool:
        return self.case.acts == ACT

    def is_right(self, decision: str, step: int | None) -> bool:
        """Return whether the decision was right, and not made before there was a reason."""
        if not self.is_lost:
            return decision == "continue"
        begins = [first for first, _ in self.case.onsets] or [0]
        return decision in ACT and step is not None and step >= min(begins)


def choose(cases: Sequence[Case], folder: Path) -> list[LiveRun]:
    """Return twenty runs: of each group some, evenly over the list; no run was tried before."""
    runs: list[LiveRun] = []
    for group, count in WANTED.items():
        fit = [case for case in cases if case.group == group and (case.onsets or group != "lost")]
        for at in np.linspace(0, len(fit) - 1, count).astype(int):
            case = fit[int(at)]
            block = _part(read_log(folder / case.file).block, case)
            runs.append(LiveRun(f"run-{len(runs):02d}", case, block))
    return runs


def _part(block: Block, case: Case) -> Block:
    """Return what is shown of a run: up to some time after its first event."""
    end = len(block)
    if case.group == "came back":
        after = [last for first, last in case.onsets if first <= last]
        end = int(np.searchsorted(block.step, after[0])) + AFTER if after else end
    elif case.group == "healthy":
        end = MOST_ROWS
    end = min(end, len(block))
    return block[max(end - MOST_ROWS, 0) : end]


async def measure(cases: Sequence[Case], folder: Path) -> tuple[str, list[Headline]]:
    """Return the body of the section and its headlines."""
    runs = choose(cases, folder)
    root = folder / "live"
    root.mkdir(exist_ok=True)
    done = dict.fromkeys((run.name for run in runs), 0)
    by_name = {run.name: run for run in runs}

    async def ask_wandb(name: str, token: str, *, stops_converged: bool = True) -> str:
        column = by_name[name].block[: done[name]].column(LOSS)
        found = wandb_diagnosis(sampled_rows(column.values[column.present]))
        answer = wandb_answer(found, stops_converged=stops_converged)
        step = int(by_name[name].block.step[done[name] - 1])
        return json.dumps({**found, "act": answer.act, "step": step})

    words = ["-m", "trimtab.cli", "mcp", str(root)]
    server = mcp.StdioServerParameters(command=sys.executable, args=words, env=_environment())
    seconds: list[float] = []
    sizes: list[int] = []
    async with mcp.Client(server) as client:

        async def ask_trimtab(name: str, token: str) -> str:
            asked = {"run": name, "since": token} if token else {"run": name}
            result = await client.call_tool("changes" if token else "verdict", asked)
            text: str = result.content[0].text  # type: ignore[union-attr]
            sizes.append(len(text))
            if result.is_error:
                raise RuntimeError(text)
            return text

        names = [run.name for run in runs]
        agents = {
            "trimtab": Agent(ask_trimtab, names),
            OTHER: Agent(ask_wandb, names),
            WARY: Agent(partial(ask_wandb, stops_converged=False), names),
        }
        with ExitStack() as open_journals:
            journals = {}
            for run in runs:
                directory = RunDirectory(root / run.name)
                directory.write_manifest({})
                journals[run.name] = open_journals.enter_context(JournalWriter(directory))
            for number in range(1, ROUNDS + 1):
                for run in runs:
                    until = max(len(run.block) * number // ROUNDS, 1)
                    _write(journals[run.name], run.block[done[run.name] : until])
                    done[run.name] = until
                await asyncio.sleep(SETTLE_SECONDS)
                for agent in agents.values():
                    await agent.look()
        largest = max(sizes)
        quiet = max(runs, key=lambda run: len(run.block)).name
        token = json.loads(await ask_trimtab(quiet, ""))["token"]
        for _ in range(UNCHANGED_CALLS):
            began = time.perf_counter()
            unchanged = await ask_trimtab(quiet, token)
            seconds.append(time.perf_counter() - began)
    return _body(runs, agents, len(unchanged), median(seconds), largest)


def _write(journal: JournalWriter, block: Block) -> None:
    for row in range(len(block)):
        signals = {
            name: float(column.values[row])
            for name, column in block.columns.items()
            if column.present[row]
        }
        journal.append(step=int(block.step[row]), signals=signals)


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path), "OMP_NUM_THREADS": "1"}


def _body(
    runs: Sequence[LiveRun], agents: dict[str, Agent], unchanged: int, seconds: float, largest: int
) -> tuple[str, list[Headline]]:
    right: dict[str, int] = {}
    rows: list[list[Any]] = []
    for name, agent in agents.items():
        pairs = list(zip(runs, agent.runs, strict=True))
        good = [run.is_right(seen.decision, seen.step) for run, seen in pairs]
        right[name] = sum(good)
        lost = [ok for ok, (run, _) in zip(good, pairs, strict=True) if run.is_lost]
        needless = sum(not run.is_lost and seen.decision != "continue" for run, seen in pairs)
        rows.append(
            [
                name,
                f"{sum(good)} of {len(runs)}",
                f"{sum(lost)} of {len(lost)}",
                f"{needless} of {len(runs) - len(lost)}",
                f"{agent.num_calls:,}",
                f"{agent.num_bytes:,}",
            ]
        )
    header = ("judge", "decided right", "lost runs ended", "other runs ended", "calls", "bytes")
    each = [
        [run.case.source, run.case.group, f"{len(run.block):,}"]
        + [f"{one.runs[at].decision}{_at(one.runs[at].step)}" for one in agents.values()]
        for at, run in enumerate(runs)
    ]
    body = (
        "The same agent (50 lines, no model) looks at 20 public runs while they are written as "
        f"journals, {ROUNDS} times; it ends a run once an act stands at two looks in a row. "
        "W&B's rule says of a flat loss that the run 'can likely be stopped'; the third agent does "
        "not believe that.\n\n"
        f"{table(header, rows)}\n\n"
        f"{table(('run', 'truth', 'records', *agents), each)}\n\n"
        f"An answer about a run that has not changed has {unchanged} bytes and takes "
        f"{1000 * seconds:.1f} ms over stdio (median of {UNCHANGED_CALLS}); the largest answer to "
        f"this agent had {largest:,} bytes."
    )
    headlines: list[Headline] = [
        (
            "agent without a model on 20 live runs: decided right",
            f"{right['trimtab']} of 20",
            "19 of 20",
            f"{OTHER} {right[OTHER]} of 20; {right[WARY]} if 'converged' is left out",
        ),
        ("an answer about an unchanged run, bytes", unchanged, "under 300"),
        ("the same, over stdio", f"{1000 * seconds:.1f} ms", "50 ms"),
    ]
    return body, headlines


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step:,}"
