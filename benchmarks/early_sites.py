"""Attention and output logits that grow: how much earlier they are found with what is measured
inside of the model, and whether a natural explosion of attention is named with its layer.

The lab's model gives nothing to `record` but its loss; telemetry has its default cadence. Each run
is judged twice: as it is, and without the signals of the sites inside of the model.
"""

import dataclasses
import logging
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.results import publish, table
from trimtab.core.config import Config
from trimtab.core.findings import Symptom
from trimtab.core.signals import OUTPUT_RMS, TOKEN_LOSS_SHARE
from trimtab.diagnosis import build_report, read_run
from trimtab.journal import RunDirectory, read_journal
from trimtab.judge import Judge
from trimtab.lab.scenarios.scenario import Scenario
from trimtab.lab.trainer.train import train_in_parts
from trimtab.report.run_report import RunReport

SEEDS, STEPS = range(3), 600
SITES = ("max_", "logit_entropy", OUTPUT_RMS, TOKEN_LOSS_SHARE)
"""What 0.2 did not measure by itself."""


def journal_of(kind: str, seed: int, folder: Path) -> Path:
    """Train one scenario as a user's loop does, and return its folder."""
    scenario = Scenario(kind=kind, seed=seed, steps=STEPS, severity=0.5)
    config = dataclasses.replace(scenario.config(), measure=False)
    run_dir = folder / scenario.name
    train_in_parts(
        config,
        run_dir,
        stop=scenario.stop,
        guard_config=Config(),
        intervention=scenario.intervention(),
    )
    return run_dir


def judged(run_dir: Path, *, with_sites: bool) -> RunReport:
    """Judge a run with the signals of its sites, or without."""
    names = set(read_journal(RunDirectory(run_dir)).block.columns)
    kept = {name for name in names if with_sites or not name.startswith(SITES)}
    run = read_run(run_dir, signals=kept)
    judge = Judge()
    judge.update(run.block)
    judge.finish()
    return build_report(judge, run, name=str(run_dir))


def found(report: RunReport, onset: int, cause: str) -> tuple[int | None, bool]:
    """Return the step of the first finding of an incident since the onset, and whether the cause
    is named first."""
    for one in report.incidents:
        steps = [f.step for f in one.incident.findings if f.step >= onset]
        if steps:
            ranking = one.ranking
            first = None if ranking is None else ranking.candidates[0].cause
            return min(steps) - onset, first is not None and first.id == cause
    return None, False


def main() -> None:
    """Measure and publish."""
    logging.disable(logging.CRITICAL)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("F09", "F10"):
            steps: dict[bool, list[float]] = {True: [], False: []}
            right = {True: 0, False: 0}
            for seed in SEEDS:
                run_dir = journal_of(kind, seed, folder)
                onset = Scenario(kind=kind, seed=seed, steps=STEPS, severity=0.5).onset
                for with_sites in (True, False):
                    step, is_right = found(judged(run_dir, with_sites=with_sites), onset, kind)
                    steps[with_sites].append(STEPS if step is None else step)
                    right[with_sites] += is_right
                    print(kind, seed, with_sites, step, is_right, file=sys.stderr, flush=True)
            for with_sites, what in ((False, "without sites"), (True, "with sites")):
                median = statistics.median(steps[with_sites])
                rows.append((kind, what, f"{median:.0f}", f"{right[with_sites]} of {len(SEEDS)}"))
        named = []
        for seed in SEEDS:
            run_dir = journal_of("natural-attention", seed, folder)
            report = judged(run_dir, with_sites=True)
            named += [
                f"seed {seed}: `{f.signal}` at step {f.step}"
                for one in report.incidents
                for f in one.incident.findings
                if f.symptom == Symptom.LARGE_LOGITS
            ][:1]
        print(named, file=sys.stderr)
    header = ("fault", "judged", "steps from onset to the first finding, median", "cause first")
    text = (
        f"{len(SEEDS)} seeds of the lab, severity 0.5, {STEPS} steps, telemetry every 10, nothing "
        "recorded by hand but the loss. A run without a finding counts as found at its end. "
        f"A high learning rate without QK-norm (natural-attention): {'; '.join(named)}.\n\n"
    )
    publish("Logits that grow", "scripts/bench early_sites", text + table(header, rows))


if __name__ == "__main__":
    main()
