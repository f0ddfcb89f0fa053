"""Verdicts: class and instruction where the truth is known.

scripts/bench verdicts drawn               curves drawn to published numbers, judged from the log
scripts/bench verdicts labelled [SPLIT]    labelled spikes of public runs, cut near their end
scripts/bench verdicts healthy [SPLIT]     an alarm planted at random rows of healthy public runs
scripts/bench verdicts all                 all three, published
"""

import argparse
import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from tests.kit.public_runs import Label, RealRun, real_runs

from benchmarks.detect.intervals import share_of
from benchmarks.results import publish, table
from benchmarks.scoring import counted, zone
from trimtab.core.actions import Action, ActionKind
from trimtab.core.block import Block, Column, FloatArray, Record
from trimtab.core.detector import Detector
from trimtab.core.findings import Finding, Severity, Symptom
from trimtab.core.incidents import Incident, IncidentClass
from trimtab.core.signals import LOSS
from trimtab.judge import Judge

Class = IncidentClass
BACK = frozenset({Class.RECOVERED, Class.RECOVERING})
UP = frozenset({Class.LINGERING})
LOST = frozenset({Class.DIVERGENT, Class.DEAD})


@dataclass(frozen=True)
class Kind:
    """One kind of incident that is drawn."""

    name: str
    steps: int
    onset: int
    excess: Callable[[FloatArray], FloatArray]
    """What is added to the loss, by the steps since the onset."""
    classes: frozenset[Class]
    noise: float = 0.03
    start: float = 9.0
    floor: float = 2.0
    pace: float = 90.0
    """Steps in which the loss falls by a factor of e towards its floor."""
    rate: Callable[[FloatArray], FloatArray] | None = None
    """What the learning rate is multiplied by since the onset."""
    norm: float = 1.0
    """What the gradient norm at the onset is multiplied by."""

    @property
    def wants_act(self) -> bool:
        return self.classes.isdisjoint(BACK)

    def draw(self, seed: int, noise: float, every: int) -> Block:
        """Return a log of the kind: one seed, times the usual noise, every so many records."""
        dice = np.random.default_rng([seed, len(self.name)])
        steps = np.arange(self.steps)
        since = np.clip(steps - self.onset, 0, None).astype(np.float64)
        is_after = steps >= self.onset
        loss = self.floor + (self.start - self.floor) * np.exp(-steps / self.pace)
        loss = loss + noise * self.noise * dice.standard_normal(self.steps)
        loss = np.where(is_after, loss + self.excess(since), loss)
        norm = 0.6 * np.exp(0.18 * dice.standard_normal(self.steps))
        norm[self.onset] *= self.norm
        columns = {LOSS: loss, "grad_norm": norm}
        if self.rate is not None:
            decay = 0.5 * (1 + np.cos(np.pi * steps / self.steps))
            columns["lr"] = 3e-4 * decay * np.where(is_after, self.rate(since), 1.0)
        kept = slice(None, None, every)
        return Block.from_columns(
            {name: Column.complete(values[kept].copy()) for name, values in columns.items()},
            step=steps[kept],
        )


def _up(height: float, steps: float) -> Callable[[FloatArray], FloatArray]:
    return lambda since: height * np.exp(-since / steps)


def _nan_for(records: float) -> Callable[[FloatArray], FloatArray]:
    return lambda since: np.where(since < records, np.nan, 0.0)


def _for_a_while(since: FloatArray) -> FloatArray:
    return np.where(since < 10, 10.0, 1.0)


KINDS = (
    Kind(
        "a slow return over 500 steps",
        2000,
        1200,
        lambda t: np.where(t < 20, t / 9, _up(2.2, 125)(t - 20)),
        BACK,
    ),
    Kind("settles 0.55 higher", 2000, 1200, lambda t: 0.55 + _up(2, 20)(t), UP),
    Kind("climbs by 0.03 a step to 9.5", 2000, 1200, lambda t: np.minimum(0.03 * t, 7.5), LOST),
    Kind(
        "LR x10 for ten steps",
        2000,
        1200,
        lambda t: 1.8 * np.exp(-np.clip(t - 10, 0, None) / 60),
        BACK,
        rate=_for_a_while,
    ),
    Kind("one burst, norm x78", 1200, 700, _up(3.5, 12), BACK, norm=78),
    Kind("settles 0.8 higher", 1200, 700, lambda t: 0.8 + _up(2, 20)(t), UP),
    Kind("climbs, then NaN", 1200, 700, lambda t: np.where(t < 350, 0.02 * t, np.nan), LOST),
    Kind("three NaN, then as before", 1500, 600, _nan_for(3), BACK),
    Kind("NaN to the end", 1200, 900, _nan_for(np.inf), LOST),
    Kind("rises by 0.0025 a step", 2000, 1000, lambda t: 0.0025 * t, LOST),
    Kind(
        "LR x40 to the end",
        1200,
        700,
        lambda t: 0.4 + _up(0.9, 40)(t),
        UP,
        rate=lambda t: np.full_like(t, 40.0),
        norm=3,
    ),
    Kind("tripled", 1200, 700, lambda t: 4.4 - 0.0005 * t, UP | LOST),
    Kind("grows slowly by a half", 1200, 700, lambda t: 1 - np.exp(-t / 150), UP | LOST),
    Kind(
        "three spikes in a row",
        1200,
        700,
        lambda t: np.where(t < 180, 3 * np.exp(-(t % 60) / 8), 0),
        BACK,
    ),
    Kind(
        "LR x40 in a small model",
        600,
        272,
        lambda t: 0.38 + _up(0.6, 40)(t),
        UP,
        noise=0.06,
        start=6.2,
        floor=5.0,
        pace=80,
    ),
    Kind(
        "labels scrambled in a fine-tuning",
        260,
        121,
        lambda t: 0.65 - _up(0.4, 60)(t),
        UP | LOST,
        noise=0.23,
        start=3.5,
        floor=2.4,
        pace=60,
        rate=np.ones_like,
    ),
    Kind(
        "LR x100 in a fine-tuning",
        260,
        121,
        lambda t: 0.45 + _up(1.2, 15)(t),
        UP,
        noise=0.23,
        start=3.5,
        floor=2.4,
        pace=60,
        rate=np.ones_like,
    ),
    Kind(
        "a table of 40 rows, tripled",
        40,
        25,
        lambda t: np.full_like(t, 5.8),
        UP | LOST,
        noise=0.05,
        start=3.0,
        floor=2.5,
        pace=15,
    ),
    Kind(
        "eight rows, 0.35 to 124",
        8,
        6,
        lambda t: np.full_like(t, 120.0),
        LOST,
        noise=0.01,
        start=0.9,
        floor=0.33,
        pace=1.5,
    ),
    Kind(
        "loss exactly 0 to the end",
        150,
        100,
        lambda t: np.full_like(t, -np.inf),
        LOST,
        start=3.0,
        pace=40,
    ),
)


@dataclass(frozen=True)
class Said:
    """One incident and what is said of it."""

    incident: Incident
    action: Action

    @property
    def acts(self) -> bool:
        return self.action.kind is not ActionKind.WAIT


def said_of(judge: Judge, block: Block) -> list[Said]:
    """Return what a judge that has seen a block says of each incident at its end."""
    judge.finish()
    return [Said(one, judge.explain(one, block).action) for one in judge.incidents]


def drawn_section(seeds: Sequence[int]) -> tuple[str, tuple[int, int]]:
    rows, totals = [], Counter[str]()
    for kind in KINDS:
        found: Counter[str] = Counter()
        for block in _variants(kind, seeds):
            judge = Judge()
            judge.update(block)
            said = said_of(judge, block)
            found["all"] += 1
            found["silent"] += not said
            found["act"] += any(one.acts for one in said) == kind.wants_act
            is_right = any(one.incident.incident_class in kind.classes for one in said)
            found["class"] += is_right or (not said and not kind.wants_act)
        rows.append((kind.name, found["all"], found["act"], found["class"], found["silent"]))
        totals.update(found)
    header = ("drawn", "logs", "wait or act right", "class right", "nothing said")
    return table(header, rows), (totals["act"], totals["all"])


def _variants(kind: Kind, seeds: Sequence[int]) -> Iterator[Block]:
    for seed in seeds:
        for noise in (1.0, 3.0):
            for every in (1, 5, 20):
                if kind.steps // every >= 100 or every == 1:
                    block = kind.draw(seed, noise, every)
                    losses = block.column(LOSS).values
                    losses[np.isneginf(losses)] = 0.0
                    yield block


LOOKS = (("end", 0), ("end + 8", 8), ("end + 50", 50), ("end + 200", 200), ("end + 500", 500))


def labelled_section(split: str) -> tuple[str, dict[str, tuple[int, int]]]:
    """Judge labelled spikes at rows around their end, where waiting is always right."""
    acts: dict[str, Counter[str]] = defaultdict(Counter)
    for run in real_runs():
        spikes = [one for one in counted(run) if one.outcome in ("recovered", "lingering")]
        if run.split == split and spikes:
            for name, row, label in sorted(_cuts(run, spikes), key=lambda cut: cut[1]):
                _count(acts[name], run, row, label)
    rows = [
        (name, found["all"], found["seen"], found["acts"], _classes(found))
        for name, found in acts.items()
    ]
    header = ("cut at", "spikes", "with an incident", "told to act", "classes")
    return table(header, rows), {name: (f["acts"], f["all"]) for name, f in acts.items()}


def _cuts(run: RealRun, spikes: Sequence[Label]) -> Iterator[tuple[str, int, Label]]:
    starts = [zone(run, one)[0] for one in spikes]
    for label in spikes:
        first, last = zone(run, label)
        for name, later in (("inside", (first - last) // 2), *LOOKS):
            row = last + later
            if row < len(run.block) and not any(first < start <= row for start in starts):
                yield name, row, label


_JUDGES: dict[str, tuple[Judge, int]] = {}


def _count(found: Counter[str], run: RealRun, row: int, label: Label) -> None:
    judge, seen = _JUDGES.get(run.name, (Judge(), 0))
    if seen > row:
        judge, seen = Judge(), 0
    judge.update(run.block[seen : row + 1])
    _JUDGES.clear()
    _JUDGES[run.name] = judge, row + 1
    block = run.block[: row + 1]
    first, last = zone(run, label)
    near = [
        one
        for one in said_of(copy.deepcopy(judge), block)
        if block.row_of(one.incident.onset.tick) <= last
        and block.row_of((one.incident.end or one.incident.last).tick) >= first
    ]
    found["all"] += 1
    found["seen"] += bool(near)
    found["acts"] += any(one.acts for one in near)
    for one in near[:1]:
        found[one.incident.incident_class] += 1


def _classes(found: Counter[str]) -> str:
    return ", ".join(f"{name} {found[name]}" for name in Class if found[name])


class Planted(Detector):
    """An alarm about the loss at one record, for no reason."""

    name = "planted"

    def __init__(self, tick: int) -> None:
        self._tick = tick

    def update(self, record: Record) -> list[Finding]:
        if record.tick != self._tick or LOSS not in record.signals:
            return []
        return [self.finding(record, Symptom.LOSS_SPIKE, Severity.ALARM, LOSS)]


AFTER = (4, 8, 32, 128, 512, 4000)


def healthy_section(split: str, count: int) -> tuple[str, tuple[int, int]]:
    """Plant alarms at random rows of healthy runs, and look some records later."""
    runs = [run for run in real_runs() if run.split == split and run.label == "healthy"]
    dice = np.random.default_rng(len(split))
    found: dict[int, Counter[str]] = defaultdict(Counter)
    acts: Counter[str] = Counter()
    for turn in range(count):
        run = runs[turn % len(runs)]
        row = int(dice.integers(4, max(len(run.block) - 5, 5)))
        later = int(dice.choice(AFTER))
        block = run.block[: min(row + later, len(run.block) - 1) + 1]
        tick = int(block.tick[row])
        judge = Judge(detectors=[Planted(tick)])
        judge.update(block)
        planted = [one for one in said_of(judge, block) if _has_planted(one.incident, tick)]
        for one in planted:
            found[later]["all"] += 1
            found[later][one.incident.incident_class] += 1
            found[later]["acts"] += one.acts
            acts[run.name] += one.acts
    total = sum(found.values(), Counter[str]())
    rows = [(n, found[n]["all"], found[n]["acts"], _classes(found[n])) for n in AFTER]
    where = ", ".join(f"{name} {n}" for name, n in acts.most_common(5) if n)
    header = ("records later", "alarms", "told to act", "classes")
    return f"{table(header, rows)}\n\nTold to act in: {where or 'none'}.", (
        total["acts"],
        total["all"],
    )


def _has_planted(incident: Incident, tick: int) -> bool:
    return any(one.detector == Planted.name and one.tick == tick for one in incident.findings)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="scripts/bench verdicts", description=__doc__)
    parser.add_argument("what", choices=("drawn", "labelled", "healthy", "all"))
    parser.add_argument("split", nargs="?", choices=("tune", "held-out"), default="tune")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--alarms", type=int, default=500)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    is_published = arguments.what == "all"
    split = "held-out" if is_published else arguments.split
    bodies, headlines = [], []
    if arguments.what in ("drawn", "all"):
        body, (right, total) = drawn_section(seeds)
        bodies.append(body)
        headlines.append(("drawn incidents: wait or act right", share_of(right, total), "95 %"))
    if arguments.what in ("labelled", "all"):
        body, told = labelled_section(split)
        bodies.append(f"Labelled spikes, {split}; all of them come back.\n\n{body}")
        for name, bar in (("end", "8 %"), ("end + 200", "0")):
            title = f"labelled spikes, {split}: told to act at their {name}"
            headlines.append((title, share_of(*told[name]), bar))
    if arguments.what in ("healthy", "all"):
        body, (acts, total) = healthy_section(split, arguments.alarms)
        bodies.append(f"Alarms planted at random rows of healthy runs, {split}.\n\n{body}")
        headlines.append(
            (f"planted alarms, {split}: told to act", f"{acts} of {total}", "1 in 500")
        )
    if is_published:
        publish("Judge: verdicts", "scripts/bench verdicts all", "\n\n".join(bodies), headlines)
    else:
        print("\n\n".join(bodies), *headlines, sep="\n")


if __name__ == "__main__":
    main()
