"""The cost of a guard: steps with and without it, interleaved in one process."""

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
from trimtab.live.guard import Guard
from trimtab.live.measure.pass_schedule import GRID
from trimtab.live.measure.token_losses import token_losses
from trimtab.selftest.promises import Counting

ROUNDS = 110
BARE_STEPS = 8
STEP_TOKENS = (4, 256)
SHORT_TOKENS = (1, 64)
"""The cost of a guard does not depend on the batch; a small batch allows more rounds."""

FORWARD_ROUNDS = 12
"""Full forward passes with hooks and without: what hooks cost depends on the batch."""

BAR = 0.01
MEAN_BAR = 0.015
"""Of the mean, with telemetry and hooks at every tenth step."""

OBSERVING: dict[str, Make] = {
    "bare": Contender,
    "bare again": Contender,
    "observe": partial(Trimtab, mode="observe"),
}
PROTECTING: dict[str, Make] = {
    "bare": Contender,
    "bare again": Contender,
    "protect, gate alone": partial(Trimtab, mode="protect", telemetry=False),
    "protect": partial(Trimtab, mode="protect"),
    **PEERS,
}

RECOVERING: dict[str, Make] = {
    "bare": Contender,
    "bare again": Contender,
    "protect": partial(Trimtab, mode="protect"),
    "recover": partial(Trimtab, mode="recover"),
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

    def hooks(self, name: str) -> float:
        """The extra cost of a forward pass with hooks and token losses, spread over the steps
        between two of them, as a share of a full step."""
        one = self.contenders[name]
        assert isinstance(one, Trimtab)
        assert isinstance(one.guard, Guard)
        slow = one.guard._monitor.slow
        activations = slow.activations
        assert activations is not None
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(2 * FORWARD_ROUNDS):
            is_armed = turn % 2 == 1
            activations.arm() if is_armed else activations.disarm()
            started = time.process_time()
            found = one.model(self._full, self._full)
            if is_armed:  # the lab's model takes no labels
                token_losses(found.logits, self._full, found.loss)
            seconds[is_armed].append(time.process_time() - started)
        activations.disarm()
        slow.arm()
        bare, armed = (statistics.median(seconds[is_armed]) for is_armed in (False, True))
        return (armed - bare) / GRID / self.step_seconds

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


def observe_row(race: Race) -> list[str]:
    """One row of the table of observing."""
    extra, mean, hooks = (
        race.extra("observe"),
        race.extra("observe", mean=True),
        race.hooks("observe"),
    )
    return [
        race.size,
        f"{1e3 * race.step_seconds:.0f} ms",
        f"{1e3 * race.tail:.1f} ms",
        percent(extra),
        percent(mean),
        percent(hooks),
        percent(mean + hooks),
        percent(race.extra("bare again")),
        f"{race.operations('observe'):.0f}",
        "yes" if extra <= BAR and mean + hooks <= MEAN_BAR else "NO",
    ]


def protect_rows(race: Race) -> list[list[str]]:
    """The rows of one size in the table of protecting."""
    noise = abs(race.extra("bare again"))
    goals = {"protect, gate alone": noise, "protect": BAR}
    rows = []
    for name in race.contenders:
        if name == "bare":
            continue
        extra, goal = race.extra(name), goals.get(name)
        verdict = "" if goal is None else ("yes" if extra <= goal else "NO")
        rows.append(
            [
                race.size,
                name,
                percent(extra),
                percent(race.extra(name, mean=True)),
                percent(race.extra(name, "wholes")),
                f"{race.operations(name):.0f}",
                verdict,
            ]
        )
    return rows


def publish_observing(races: list[Race]) -> None:
    """Publish the table of observing."""
    header = (
        *("size", "bare step", "bare tail", "tail, median", "tail, mean", "forward, mean"),
        *("together, mean", "A/A, median", "extra operations per step"),
        f"median within {100 * BAR:.0f} %, mean within {100 * MEAN_BAR:.1f} %",
    )
    body = (
        "CPU time of the tail (end of backward to end of zero_grad) with everything on at its "
        f"default cadence, minus that of the bare loop, relative to a bare step of "
        f"{STEP_TOKENS[0]} x {STEP_TOKENS[1]} tokens; {ROUNDS} interleaved rounds, fused AdamW, "
        "one thread. A/A is a second bare loop against the first. Telemetry runs at every tenth "
        "step, so it shows in the mean and not in the median. Forward: what a forward pass of that "
        "size takes longer with hooks on all sites and with token losses from its logits, a tenth "
        f"of it, by the median of {FORWARD_ROUNDS} passes each.\n\n"
    )
    rows = [observe_row(race) for race in races]
    headlines = [
        (f"observe, {row[0]} parameters: longer steps, forward included", row[6], "1.5 %")
        for row in rows
    ]
    publish("Cost of observing", "scripts/bench overhead", body + table(header, rows), headlines)


def publish_protecting(races: list[Race]) -> None:
    """Publish the table of protecting."""
    header = (
        *("size", "loop", "tail, median", "tail, mean", "whole step, median"),
        *("extra operations per step", "goal met"),
    )
    body = (
        "Extra CPU time over the bare loop (clip, fused AdamW), relative to a bare step of "
        f"{STEP_TOKENS[0]} x {STEP_TOKENS[1]} tokens; {ROUNDS} interleaved rounds, one thread. The "
        "tail is from the end of backward to the end of zero_grad; the work of forward and "
        "backward hooks shows only in the whole step. Goals: the gate alone costs no more than a "
        f"second bare loop differs from the first; with telemetry at most {100 * BAR:.0f} %. The "
        "other tools change or watch the same run in their own ways; only trimtab and OLMo-core "
        "discard a step on the device.\n\n"
    )
    rows = [row for race in races for row in protect_rows(race)]
    command = "scripts/bench overhead protect"
    headlines = [_protect_headline(race) for race in races]
    publish("Cost of protecting", command, body + table(header, rows), headlines)


def _protect_headline(race: Race) -> tuple[str, str, str, str]:
    """Return the cost of protecting one size, beside that of the other tools."""
    others = [
        f"{name} {percent(race.extra(name, mean=True))}"
        for name in PEERS
        if name in race.contenders
    ]
    cost = percent(race.extra("protect", mean=True))
    return f"protect, {race.size} parameters: longer steps", cost, "1 %", ", ".join(others)


def publish_recovering(races: list[Race]) -> None:
    """Publish the table of recovering."""
    header = ("size", "bare step", "loop", "tail, median", "tail, mean", f"{100 * BAR:.0f} % met")
    body = (
        "Extra CPU time over the bare loop (clip, fused AdamW), relative to a bare step of "
        f"{STEP_TOKENS[0]} x {STEP_TOKENS[1]} tokens; {ROUNDS} interleaved rounds, one thread. An "
        "audit and a snapshot are made at every tenth step, and telemetry too, so they show in the "
        "mean.\n\n"
    )
    rows, headlines = [], []
    for race in races:
        cost = percent(race.extra("recover", mean=True))
        headlines.append((f"recover, {race.size} parameters: longer steps", cost, "1 %"))
        for name in ("bare again", "protect", "recover"):
            mean = race.extra(name, mean=True)
            met = "" if name == "bare again" else ("yes" if mean <= BAR else "NO")
            step = f"{1e3 * race.step_seconds:.0f} ms"
            rows.append([race.size, step, name, percent(race.extra(name)), percent(mean), met])
    command = "scripts/bench overhead recover"
    publish("Cost of recovering", command, body + table(header, rows), headlines)


PUBLISHING = {
    "observe": (OBSERVING, publish_observing),
    "protect": (PROTECTING, publish_protecting),
    "recover": (RECOVERING, publish_recovering),
}


def main() -> None:
    """Measure and publish: `overhead [protect | recover] [SIZE ...]`."""
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    mode = next((name for name in arguments if name in PUBLISHING), "observe")
    sizes = [name for name in arguments if name not in PUBLISHING] or ["10M", "x1"]
    makes, publish_races = PUBLISHING[mode]
    with tempfile.TemporaryDirectory() as folder:
        races = [Race(makes, size, Path(folder) / size, ROUNDS) for size in sizes]
        publish_races(races)
        for race in races:
            race.close()


if __name__ == "__main__":
    main()
