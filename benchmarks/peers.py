"""The cost of protection beside that of other tools: `scripts/bench peers [SIZE ...]`.

Loops with each tool and without take turns in one process. What trimtab alone costs is measured
more exactly by `scripts/bench overhead`.
"""

import contextlib
import io
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from benchmarks.contenders import PEERS, Contender, Make, Trimtab, make_all
from benchmarks.results import publish, table
from trimtab.lab.model.sizes import SIZES
from trimtab.selftest.promises import Counting

ROUNDS = 110
BARE_STEPS = 8
STEP_TOKENS = (4, 256)
SHORT_TOKENS = (1, 64)
"""The cost of a guard does not depend on the batch; a small batch allows more rounds."""

MAKES: dict[str, Make] = {
    "bare": Contender,
    "bare again": Contender,
    "protect, gate alone": partial(Trimtab, mode="protect", telemetry=False),
    "protect": partial(Trimtab, mode="protect"),
    **PEERS,
}


class Race:
    """Contenders that take turns, and the extra cost of each over the first."""

    def __init__(self, makes: dict[str, Make], size: str, folder: Path, rounds: int) -> None:
        self.size = size
        self.contenders = make_all(makes, size, folder)
        vocabulary = SIZES[size].vocab_size
        self._short = torch.randint(0, vocabulary, SHORT_TOKENS)
        self._full = torch.randint(0, vocabulary, STEP_TOKENS)
        contenders = list(self.contenders.values())
        for one in contenders:
            one.step(self._short)
            one.wholes.clear()
            one.tails.clear()
        self.take_turns(rounds)
        self.base = contenders[0]
        self.tail = statistics.median(self.base.tails)
        self.step_seconds = self._full_step()

    def take_turns(self, rounds: int) -> None:
        """Let every contender do this many short steps."""
        contenders = list(self.contenders.values())
        with contextlib.redirect_stdout(io.StringIO()):  # some guards print a lot
            for turn in range(rounds):
                # Rotate the order, so that drift of the machine favours no contender.
                start = turn % len(contenders)
                for one in contenders[start:] + contenders[:start]:
                    one.step(self._short)

    def _full_step(self) -> float:
        """The time of a bare step of full length, the unit of all costs."""
        seconds = []
        counted = len(self.base.tails)
        for _ in range(BARE_STEPS):
            started = time.process_time()
            self.base.step(self._full)
            seconds.append(time.process_time() - started)
        del self.base.tails[counted:], self.base.wholes[counted:]
        return statistics.median(seconds)

    def extra(self, name: str, what: str = "tails", *, mean: bool = False) -> float:
        """The extra cost of a contender over the bare loop, as a share of a full step."""
        average = statistics.mean if mean else statistics.median
        ours, theirs = (average(getattr(o, what)) for o in (self.contenders[name], self.base))
        return float(ours - theirs) / self.step_seconds

    def operations(self, name: str) -> float:
        """Extra operations per step over the bare loop, averaged over ten steps."""
        counts = []
        for one in (self.contenders[name], self.base):
            counting = Counting()
            with counting:
                for _ in range(10):
                    one.step(self._short)
            counts.append(counting.counts.total())
        return (counts[0] - counts[1]) / 10

    def close(self) -> None:
        """Close all contenders."""
        for one in self.contenders.values():
            one.close()


def percent(share: float) -> str:
    """A share with its sign."""
    return f"{100 * share:+.2f} %"


def rows_of_race(race: Race) -> list[list[str]]:
    """Return the rows of one size."""
    return [
        [
            race.size,
            name,
            percent(race.extra(name)),
            percent(race.extra(name, mean=True)),
            percent(race.extra(name, "wholes")),
            f"{race.operations(name):.0f}",
        ]
        for name in race.contenders
        if name != "bare"
    ]


def headline(race: Race) -> tuple[str, str, str, str]:
    """Return the cost of protecting one size, beside that of the other tools."""
    others = [
        f"{name} {percent(race.extra(name, mean=True))}"
        for name in PEERS
        if name in race.contenders
    ]
    cost = percent(race.extra("protect", mean=True))
    return f"protect beside other tools, {race.size} parameters", cost, "-", ", ".join(others)


def main() -> None:
    """Measure and publish."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sizes = sys.argv[1:] or ["10M"]
        races = [Race(MAKES, size, Path(folder) / size, ROUNDS) for size in sizes]
        rows = [row for race in races for row in rows_of_race(race)]
        headlines = [headline(race) for race in races]
        for race in races:
            race.close()
    header = ("size", "loop", "tail, median", "tail, mean", "whole step, median", "operations")
    body = (
        "Extra CPU time over the bare loop (clip, fused AdamW), relative to a bare step of "
        f"{STEP_TOKENS[0]} x {STEP_TOKENS[1]} tokens; {ROUNDS} interleaved rounds, one thread. The "
        "tail is from the end of backward to the end of zero_grad; the work of forward and "
        "backward hooks shows only in the whole step. Operations: above bare, mean of ten steps. "
        "The other tools change or watch the same run in their own ways; only trimtab and "
        "OLMo-core discard a step on the device.\n\n"
    )
    command = "scripts/bench peers"
    publish("Cost beside other tools", command, body + table(header, rows), headlines)


if __name__ == "__main__":
    main()
