"""Short runs that record, step by step, what the training loop receives and holds."""

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy.typing as npt
from tests.lab.training import journal, run_until, small
from torch import Tensor

from trimtab.core.block import Block
from trimtab.core.config import Config
from trimtab.lab.corpus.data import Batch
from trimtab.lab.model.optimizer import OptimizerConfig
from trimtab.lab.model.sizes import ModelConfig
from trimtab.lab.trainer.checkpoints import LabRun
from trimtab.lab.trainer.intervention import (
    Base,
    Intervention,
    RunParts,
    before_step,
    change_batches,
    change_gradient,
    current_step,
)
from trimtab.lab.trainer.local_ranks import run_ranks
from trimtab.lab.trainer.train import train
from trimtab.lab.trainer.train_config import Dtype, TrainConfig

ONSET = 8
STEPS = 14
STILL = OptimizerConfig(lr=1e-30)
"""A learning rate too low to change any bit of a weight: all steps of two runs can be compared, not
only the first that differs."""

EVERY_STEP = Config.from_dict({"live": {"telemetry_every": 1}})

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(kw_only=True)
class Observed:
    """What the loop of one rank received and held, by step."""

    truth: dict[str, Any] = field(default_factory=dict)
    tokens: dict[int, npt.NDArray[Any]] = field(default_factory=dict)
    targets: dict[int, npt.NDArray[Any]] = field(default_factory=dict)
    weights: dict[int, Arrays] = field(default_factory=dict)
    """As the forward pass uses them."""
    state: dict[int, Arrays] = field(default_factory=dict)
    """Adam's state, by `embed.weight exp_avg`; missing state has no entry."""
    groups: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    """The optimizer's settings."""
    gradients: dict[int, Arrays] = field(default_factory=lambda: defaultdict(dict))
    """As this rank computes them, not yet averaged or clipped."""
    seconds: dict[int, float] = field(default_factory=dict)
    """Seconds from the batch to the first gradient on this rank, before any collective."""


@dataclass(kw_only=True)
class _Observer(Intervention):
    """Attaches an intervention and records what the loop receives."""

    cause = None
    title = "an observer"
    strength_name = "none"

    inner: Intervention | None
    seen: Observed = field(default_factory=Observed)

    def attach(self, parts: RunParts) -> LabRun:
        run = parts.run
        if self.inner is not None:
            run = self.inner.attach(parts)
            self.seen.truth = self.inner.truth
        for name, parameter in run.model.named_parameters():
            change_gradient(run, parameter, partial(self._record_gradient, name))
        run = before_step(run, partial(self._record_state, run))
        return change_batches(run, partial(self._record_batch, run))

    def _record_gradient(self, name: str, step: int, gradient: Tensor) -> Tensor:
        if not self.seen.gradients[step]:
            self.seen.seconds[step] += time.perf_counter()
        self.seen.gradients[step][name] = gradient.numpy().copy()
        return gradient

    def _record_batch(self, run: LabRun, time_of_batch: int, batch: Batch) -> Batch:
        seen, step = self.seen, current_step(run)
        seen.tokens[step], seen.targets[step] = batch.tokens.numpy(), batch.targets.numpy()
        seen.seconds[step] = -time.perf_counter()
        return batch

    def _record_state(self, run: LabRun, step: int) -> None:
        seen, optimizer = self.seen, run.optimizer
        named = dict(run.model.named_parameters())
        seen.weights[step] = {n: p.detach().numpy().copy() for n, p in named.items()}
        seen.state[step] = {
            f"{name} {key}": value.numpy().copy()
            for name, parameter in named.items()
            for key, value in optimizer.state.get(parameter, {}).items()
        }
        seen.groups[step] = [
            {key: value for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished run."""

    block: Block
    """Its journal."""
    ranks: list[Observed]

    @property
    def loop(self) -> Observed:
        """The first rank, which is the only one in most runs."""
        return self.ranks[0]


class Bench:
    """Trains short runs; each clean run only once."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self._folder = folder
        self._cache = cache
        self._names = (f"run-{number}" for number in count())
        self._clean: dict[Any, Trained] = {}

    def pair(self, fault: Intervention, **settings: Any) -> tuple[Trained, Trained]:
        """The run with the fault, and the same one without."""
        return self.broken(fault, **settings), self.clean(fault.base, **settings)

    def broken(self, fault: Intervention, **settings: Any) -> Trained:
        """A run with a fault."""
        return self._train(fault, fault.base, settings)

    def clean(self, base: Base = Base.PLAIN, **settings: Any) -> Trained:
        """A clean run."""
        key = (base, frozenset(settings.items()))
        if key not in self._clean:
            self._clean[key] = self._train(None, base, settings)
        return self._clean[key]

    def _train(self, fault: Intervention | None, base: Base, settings: dict[str, Any]) -> Trained:
        run_dir = self._folder / next(self._names)
        config = settings_for(base, **settings)
        if fault is not None:
            config = fault.settings(config)
        stop = ONSET if base is Base.RESUME else config.steps
        args = (fault, config, stop, run_dir, self._cache)
        ranks = run_ranks(_observe, 2, *args) if base is Base.RANKS else [_observe(0, *args)]
        return Trained(block=journal(run_dir), ranks=ranks)


def settings_for(base: Base, **settings: Any) -> TrainConfig:
    """A run of 14 steps on a base; a resumed one is stopped at the onset."""
    usual: dict[str, Any] = {
        "model": ModelConfig(vocab_size=512, width=32, layers=2, heads=2),
        "steps": STEPS,
        "dtype": Dtype.FP16 if base is Base.FP16 else Dtype.FP32,
        "eval_steps": ONSET,
        "checkpoint_steps": ONSET if base is Base.RESUME else STEPS,
        "measure": True,
    }
    return small(**(usual | settings))


def _observe(
    rank: int,
    fault: Intervention | None,
    config: TrainConfig,
    stop: int,
    run_dir: Path,
    cache: Path,
) -> Observed:
    observer = _Observer(onset=0, severity=0.0, seed=0, inner=fault)
    options: dict[str, Any] = {"guard_config": EVERY_STEP, "intervention": observer}
    run_until(stop, config, run_dir, cache, **options)
    if stop < config.steps:
        train(config, run_dir, resume=True, cache_dir=cache, **options)
    return observer.seen


def differing(one: Arrays, other: Arrays) -> set[str]:
    """The names whose arrays are not bit-identical, or that only one side has."""
    return {
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or one[name].tobytes() != other[name].tobytes()
    }


def seed_where(kind: type[Intervention], wanted: Callable[[Any], bool]) -> int:
    """The first seed whose intervention has a wanted property that only the seed determines."""
    seeds = range(1000)
    return next(seed for seed in seeds if wanted(kind(onset=ONSET, severity=1.0, seed=seed)))
