"""The runs that the judge is measured on; each is trained once, and kept in a cache."""

import hashlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.zoo import KINDS, half_of, train
from benchmarks.zoo.kinds import STEPS
from benchmarks.zoo.records import load, save
from benchmarks.zoo.session import FAULTS, Session
from trimtab.core.block import Block

FAULT_STEPS, FAULT_AT = 700, 450
"""Steps of a run with a fault, and the step of the fault."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One run of a kind."""

    kind: str
    seed: int
    fault: str = ""

    @property
    def half(self) -> str:
        """Which half of the kinds it belongs to: rules were chosen with "tune" alone."""
        return half_of(self.kind)

    @property
    def name(self) -> str:
        """The name of its file."""
        title = "".join(letter if letter.isalnum() else "_" for letter in self.kind)
        return f"{title}-{self.seed}{'-' + self.fault.replace(' ', '_') if self.fault else ''}"


def is_slow(kind: str) -> bool:
    """Return whether a step of the kind takes several times as long as most: recurrent models."""
    return any(
        word in kind for word in ("language", "speech", "LSTM", "sequences", "summed", "copying")
    )


def healthy_worlds(seeds: int) -> Iterator[World]:
    """Every kind, seed by seed."""
    for seed in range(seeds):
        for kind in KINDS:
            yield World(kind=kind, seed=seed)


def fault_worlds() -> Iterator[World]:
    """Every fault in every fourth kind."""
    for kind in sorted(KINDS, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[::4]:
        for fault in FAULTS:
            yield World(kind=kind, seed=0, fault=fault)


def is_recorded(world: World, folder: Path) -> bool:
    return _path(world, folder).exists()


def _path(world: World, folder: Path) -> Path:
    return folder / f"{world.name}.npz"


def records_of(world: World, folder: Path) -> Block:
    """Return the records of a run, trained if they are not in the cache."""
    path = _path(world, folder)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        begin = time.perf_counter()
        run = Session(world.seed, world.fault, FAULT_AT)
        try:
            train(world.kind, run, FAULT_STEPS if world.fault else STEPS)
        except (ValueError, RuntimeError) as error:  # NaN weights: nothing more can be sampled
            if not world.fault:
                raise
            print(f"{world.name} ends: {error}", file=sys.stderr)
        save(path.with_suffix(".part.npz"), run.records)
        path.with_suffix(".part.npz").rename(path)
        took = time.perf_counter() - begin
        print(f"{world.name}: {len(run.records)} records, {took:.0f} s", file=sys.stderr)
    return load(path)


def generate(seeds: int, folder: Path) -> None:
    """Train everything that is not there."""
    torch.set_num_threads(1)
    for world in sorted(healthy_worlds(seeds), key=lambda world: (world.seed, is_slow(world.kind))):
        records_of(world, folder)
        if world == World(kind=list(KINDS)[-1], seed=0):  # the first seed of the fast ones is there
            for faulty in fault_worlds():
                records_of(faulty, folder)
