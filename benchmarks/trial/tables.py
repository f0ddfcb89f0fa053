"""Study: the outcomes of all runs, and the tables that they make."""

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from benchmarks.recover.worlds import World
from benchmarks.results import Headline, table
from benchmarks.trial.faults import FAULTS, HEALTHY
from benchmarks.trial.measurement import (
    HEALTHY_STEPS,
    LENGTHS,
    PURPOSE_STEPS,
    STEPS,
    USUAL,
    Measurement,
)
from benchmarks.trial.purposes import PURPOSES

WORSE = 0.01
"""By how much an act must end above waiting to count as harm, in nat."""

FORWARD_SHARE = 1 / 3
"""What a forward pass takes of a step. Source: a backward pass takes twice as long."""

Outcomes = dict[int, dict[str, Any]]
"""Those of a run by seed."""


class Study:
    """What was measured, and what could not be in the time that was given."""

    def __init__(self, worlds: Sequence[World]) -> None:
        self._worlds = worlds
        self._found: defaultdict[tuple[str, str, str, int], Outcomes] = defaultdict(dict)
        self._seeds: set[int] = set()
        self.num_missing = 0
        """Runs that were not trained, as the time was over."""

    def add(self, run: Measurement, outcome: dict[str, Any]) -> None:
        self._found[run.world.name, run.name, run.arm, run.steps][run.seed] = outcome
        self._seeds.add(run.seed)

    def section(self) -> tuple[str, list[Headline]]:
        """Return the text of the section and its headlines."""
        faults, acts = self._faults()
        longer, worst = self._longer()
        purposes, num_purposes, wrong, num_asked = self._purposes()
        healthy, num_opened, num_healthy, num_healthy_acts = self._healthy()
        worse = [name for name, harm in acts if harm > WORSE]
        better = sum(harm < -WORSE for _, harm in acts)
        missing = (
            f" {self.num_missing} runs were not reached in the time that was given; the figures "
            "are of the others."
            if self.num_missing
            else ""
        )
        first, last = min(self._seeds), max(self._seeds)
        body = (
            f"{len(self._worlds)} runs of {STEPS} steps, seeds {first} to {last}, on none of "
            f"which a threshold was chosen.{missing} Each cell: loss on held-out data minus that "
            "of the clean twin when waiting → with `auto`, in nat, mean of the seeds; then the "
            "runs in which the older state was restored (r), proposed (p), undone by proof (b), or "
            "won no trial (c: present better, u: unclear, o: other loss, g: not finished).\n\n"
            f"{table(['fault', *(w.name for w in self._worlds)], faults)}\n\n"
            f"Of {len(acts)} rollbacks {better} ended more than {WORSE} nat better than waiting, "
            f"{len(worse)} more than that worse ({', '.join(worse) or 'none'}).\n\n"
            f"{USUAL} in longer runs: the state that is restored is that of the clean run; "
            "what is left is the price of the updates that are lost.\n\n"
            f"{table(['run', 'steps', 'waits', 'auto', 'largest of the seeds', 'did'], longer)}\n\n"
            f"On purpose, not announced, in runs of {PURPOSE_STEPS} steps: restored unasked "
            f"in {len(wrong)} of {num_purposes} runs "
            f"({', '.join(wrong) or 'none'}), proposed in {num_asked}. How near each came: what "
            "was done, and the largest lead of the older state in any window, of what the rule "
            "demands (at 1 it would have won, if twice so and if nothing spoke for purpose). "
            f"Changes that opened no trial are left out.\n\n"
            f"{table(['change', *(w.name for w in self._worlds)], purposes)}\n\n"
            f"Healthy runs of {HEALTHY_STEPS:,} steps:\n\n"
            + table(
                ["kind", "steps", "trials per 10,000 steps", "restored", "proposed", "cost, steps"],
                healthy,
            )
        )
        headlines: list[Headline] = [
            (f"purposeful changes rolled back, of {num_purposes} runs", len(wrong), "0"),
            (
                f"rollbacks over {WORSE} nat worse than waiting",
                f"{len(worse)} of {len(acts)}",
                "2 %",
            ),
            *(
                (
                    f"learning rate x100 for five steps in {steps:,} steps, above clean at most",
                    f"{rise:+.3f}",
                    "0.02",
                )
                for steps, rise in worst.items()
            ),
            (
                f"trials that act in {num_healthy:,} healthy steps, of {num_opened} opened",
                num_healthy_acts,
                "0",
            ),
        ]
        return body, headlines

    def _get(self, world: World, name: str, arm: str, steps: int) -> Outcomes:
        return self._found.get((world.name, name, arm, steps), {})

    def _rises(self, world: World, name: str, arm: str, steps: int) -> list[float]:
        clean = self._get(world, "nothing", "off", steps)
        found = self._get(world, name, arm, steps)
        return [found[s]["final"] - clean[s]["final"] for s in sorted(found.keys() & clean.keys())]

    def _faults(self) -> tuple[list[list[object]], list[tuple[str, float]]]:
        """Return a row for each fault, and by how much each rollback ended above waiting."""
        rows: list[list[object]] = []
        acts: list[tuple[str, float]] = []
        for name in FAULTS:
            row: list[object] = [name]
            for world in self._worlds:
                waits = self._get(world, name, "off", STEPS)
                auto = self._get(world, name, "auto", STEPS)
                acts += [
                    (f"{name} ({world.name})", auto[seed]["final"] - waits[seed]["final"])
                    for seed in auto.keys() & waits.keys()
                    if auto[seed]["acts"]
                ]
                rises = [_mean(self._rises(world, name, arm, STEPS)) for arm in ("off", "auto")]
                row.append(f"{rises[0]} → {rises[1]} {_counts(auto)}" if auto else "")
            if any(row[1:]):
                rows.append(row)
        return rows, acts

    def _longer(self) -> tuple[list[list[object]], dict[int, float]]:
        """Return a row for each run and length, and the largest rise of each length."""
        rows: list[list[object]] = []
        worst: dict[int, float] = {}
        for steps in LENGTHS:
            for world in self._worlds:
                auto = self._rises(world, USUAL, "auto", steps)
                if not auto:
                    continue
                waits = _mean(self._rises(world, USUAL, "off", steps))
                did = _counts(self._get(world, USUAL, "auto", steps))
                rows.append([world.name, steps, waits, _mean(auto), f"{max(auto):+.3f}", did])
                worst[steps] = max(worst.get(steps, -math.inf), statistics.fmean(auto))
        return rows, worst

    def _purposes(self) -> tuple[list[list[object]], int, list[str], int]:
        rows: list[list[object]] = []
        num_runs = num_asked = 0
        wrong: list[str] = []
        for name in PURPOSES:
            row: list[object] = [name]
            for world in self._worlds:
                found = self._get(world, name, "auto", PURPOSE_STEPS)
                num_runs += len(found)
                wrong += [
                    f"{name} ({world.name})" for o in found.values() if o["acts"] or o["proofs"]
                ]
                num_asked += sum(bool(o["asked"]) for o in found.values())
                nearest = [o["nearness"] for o in found.values() if o["nearness"] is not None]
                near = f" {max(nearest):+.1f}" if nearest else ""
                row.append(f"{_counts(found)}{near}" if found else "")
            if any(cell not in ("", "-") for cell in row[1:]):
                rows.append(row)
        return rows, num_runs, wrong, num_asked

    def _healthy(self) -> tuple[list[list[object]], int, int, int]:
        rows: list[list[object]] = []
        opened = steps = acts = 0
        for name in HEALTHY:
            found = [
                outcome
                for world in self._worlds
                for outcome in self._get(world, f"healthy: {name}", "auto", HEALTHY_STEPS).values()
            ]
            if not found:
                continue
            num_steps = len(found) * HEALTHY_STEPS
            restored = sum(len(o["acts"]) for o in found)
            asked = sum(len(o["asked"]) for o in found)
            num_opened = restored + asked + sum(len(o["closed"]) for o in found)
            cost = 2 * FORWARD_SHARE * sum(o["scored"] for o in found)
            per = 1e4 * num_opened / num_steps
            share = f"{cost:.0f} ({100 * cost / num_steps:.1f} %)"
            rows.append([name, f"{num_steps:,}", f"{per:.0f}", restored, asked, share])
            opened, steps, acts = opened + num_opened, steps + num_steps, acts + restored
        return rows, opened, steps, acts


def _mean(rises: Sequence[float]) -> str:
    return f"{statistics.fmean(rises):+.3f}" if rises else "?"


def _counts(found: Outcomes) -> str:
    """Return what was done in how many runs: "2r 1p 3c"."""
    outcomes = list(found.values())
    done = {
        "r": sum(bool(o["acts"]) for o in outcomes),
        "p": sum(bool(o["asked"]) for o in outcomes),
        "b": sum(bool(o["proofs"]) for o in outcomes),
        **{
            letter: sum(any(word in how for _, how in o["closed"]) for o in outcomes)
            for letter, word in (
                ("c", "present state"),
                ("u", "within the noise"),
                ("o", "batch_loss"),
                ("g", "no old snapshot"),
            )
        },
    }
    return " ".join(f"{count}{letter}" for letter, count in done.items() if count) or "-"
