"""`scripts/bench trainers recover FOLDER`: runs that have to recover, in real trainers.

What was measured is kept in FOLDER, so a measurement can be continued.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.kit.trainer_jobs.job import BAD, STEPS, lost_and_repeated

from benchmarks.results import publish, table
from benchmarks.trainers.installed import TRAINERS

BAR = 0.02
"""The final loss may differ by this many nats from that of the clean twin."""
SEEDS = range(1, 6)
NOT_RUN = "not run"
HEAD = (
    f"Runs of {STEPS} steps of a tiny model on data that it can learn (held-out loss from 3.4 to "
    "about 1.25 nats), in `recover`. Flip: a weight becomes 1e30; the ladder restores by itself. "
    "Skip: six batches in a row are NaN; they are discarded, then the run goes back by "
    "`guard.rollback` and leaves them out. Kill: on 2 ranks one of them is killed by SIGKILL, and "
    "`trimtab run --crashes -- torchrun ...` launches both again, from the last good checkpoint. "
    "(`torchrun --max-restarts` needs a variable of torch, docs/relaunch.md: without it the "
    "restarted workers once could not connect in gloo, before trimtab starts.) "
    "Same bits: weights and moments of all ranks are those of the run without a fault. Positions: "
    "each batch was trained on once in the run as it is at its end, but for those that were "
    "skipped. Loss: held-out loss minus that of the clean twin, over 5 seeds on 1 rank, and "
    f"for one seed after the kill; bar {BAR}.\n\n"
)


def main(arguments: list[str]) -> None:
    """Measure and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench trainers recover", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trainers", default="Trainer,Accelerate,Lightning")
    parser.add_argument("--minutes", type=float, default=1e6, help="no run begins later")
    parser.add_argument("--no-publish", action="store_true")
    chosen = parser.parse_args(arguments)
    rows, ends = [], time.monotonic() + 60 * chosen.minutes
    for name in chosen.trainers.split(","):
        (trainer,) = [one for one in TRAINERS if one.name == name]
        rows.append([name, trainer.version, *measure(chosen.folder / name, name, ends)])
    header = ["trainer", "versions", "flip", "flip, kill, 2 ranks", "skip: loss", "skip: positions"]
    body = HEAD + table([*header, "skip, kill, 2 ranks"], rows)
    if chosen.no_publish:
        print(body)
    else:
        publish("Live: trainers that recover", "scripts/bench trainers recover", body)


def measure(folder: Path, name: str, ends: float) -> list[str]:
    """The cells of a trainer; a run that would begin later is left out."""
    alone = [_job(folder, name, seed, fault) for seed in SEEDS for fault in ("", "skip")]
    alone.insert(1, _job(folder, name, SEEDS[0], "flip"))
    launch(folder / "alone.json", alone, ends)
    pair = [_job(folder / "ranks", name, 1, "")]
    launch(folder / "pair.json", pair, ends, ranks=2)
    for fault in ("flip", "skip"):
        job = _job(folder / "ranks", name, 1, fault) | {"is_killed": True}
        launch(folder / f"killed-{fault}.json", [job], ends, ranks=2)
    clean, flipped = (results(folder / f"{f}-1") for f in ("clean", "flip"))
    twins = results(folder / "ranks" / "clean-1")
    killed = {f: results(folder / "ranks" / f"{f}-1") for f in ("flip", "skip")}
    return [
        _same(clean, flipped),
        _same(twins, killed["flip"]),
        _differences(folder),
        _all_positions([folder / f"skip-{seed}" for seed in SEEDS]),
        _difference(twins, killed["skip"], folder / "ranks" / "skip-1"),
    ]


def launch(path: Path, jobs: list[dict[str, Any]], ends: float, ranks: int = 1) -> None:
    """Run jobs that have no result yet; on several ranks by torchrun."""
    for job in jobs:
        Path(job["folder"]).mkdir(parents=True, exist_ok=True)
    missing = [job for job in jobs if not results(Path(job["folder"]))]
    if not missing or time.monotonic() > ends:
        return
    path.write_text(json.dumps(missing), encoding="utf-8")
    command = [sys.executable, "-m"]
    if ranks > 1:
        command += ["trimtab.cli", "run", "--crashes", "--max-relaunches=1", "--delay=0", "--"]
        command += [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
        command += ["--standalone", "-m"]
    log = path.with_suffix(".log")
    with log.open("w") as output:
        subprocess.run(
            [*command, "benchmarks.trainers.recover_worker", str(path)],
            stdout=output,
            stderr=output,
            check=False,
        )
    if any(not results(Path(job["folder"])) for job in jobs):
        sys.exit(f"a run has left no result; see {log}")


def results(folder: Path) -> list[dict[str, Any]]:
    """What the ranks of a run have left."""
    found = sorted(folder.glob("result.*"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def _job(folder: Path, trainer: str, seed: int, fault: str) -> dict[str, Any]:
    place = folder / f"{fault or 'clean'}-{seed}"
    return {"trainer": trainer, "folder": str(place), "seed": seed, "fault": fault}


def _same(one: list[dict[str, Any]], other: list[dict[str, Any]]) -> str:
    if not one or not other:
        return NOT_RUN
    is_same = [o["bits"] for o in one] == [o["bits"] for o in other]
    return "same bits" if is_same else "**different bits**"


def _difference(clean: list[dict[str, Any]], killed: list[dict[str, Any]], folder: Path) -> str:
    if not clean or not killed:
        return NOT_RUN
    return f"{killed[0]['loss'] - clean[0]['loss']:+.4f}, {_all_positions([folder])}"


def _differences(folder: Path) -> str:
    pairs = [
        [results(folder / f"{f}-{seed}")[0]["loss"] for f in ("skip", "clean")] for seed in SEEDS
    ]
    found = np.array([skip - clean for skip, clean in pairs])
    return f"mean {found.mean():+.4f}, largest {np.abs(found).max():.4f}"


def _all_positions(folders: list[Path]) -> str:
    wrong = [f for f in folders if lost_and_repeated(f / "run") != (set(BAD), 0)]
    count = f"{len(folders) - len(wrong)} of {len(folders)}"
    return f"{count} exact" if not wrong else f"**{count} exact**"
