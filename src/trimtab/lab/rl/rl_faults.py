"""The faults R01 to R12: each changes one knob of the trainer at the onset."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from trimtab.core.config import Mode
from trimtab.core.errors import ConfigError
from trimtab.lab.rl.arithmetic import DIGITS, grade, response_mask
from trimtab.lab.rl.grpo import Knobs, RlConfig, train
from trimtab.lab.scenarios.catalogue import CLEAN

_EARLIEST, _LATEST = 0.35, 0.55
"""Range of the onset, as a share of the run: after a baseline, with time to see the outcome."""


@dataclass(frozen=True, slots=True)
class RlFault:
    """One fault of the lab."""

    title: str
    change: Callable[[Knobs, int], None]
    """Changes the knobs; the second argument is the seed, where a fault has variants."""

    def plant(self, seed: int) -> Callable[[Knobs], None]:
        """Return what changes the knobs of a run with this seed."""
        return lambda knobs: self.change(knobs, seed)


def _set(**values: object) -> Callable[[Knobs, int], None]:
    def change(knobs: Knobs, seed: int) -> None:
        for name, value in values.items():
            setattr(knobs, name, value)

    return change


def _data(knobs: Knobs, seed: int) -> None:
    """Ask for sums of three digits, which the policy has never seen, or only for x + 0."""
    knobs.terms = (3, 0, DIGITS) if seed % 2 else (2, 0, 1)


def _broken(responses: Tensor, answers: Tensor) -> Tensor:
    """Compare with the answer as if it were a string: never equal."""
    return torch.zeros(len(responses))


def _hackable(responses: Tensor, answers: Tensor) -> Tensor:
    """Pay more for an answer of 0 than for the right one."""
    has_zero = ((responses == 0) & response_mask(responses)).any(1)
    return grade(responses, answers)[0] + 3 * has_zero


RL_FAULTS: Mapping[str, RlFault] = MappingProxyType(
    {
        "R01": RlFault("the learning rate is 30 times too high", _set(lr_factor=30.0)),
        "R02": RlFault("the engine no longer gets new weights", _set(syncs=False)),
        "R03": RlFault(
            "the engine samples at temperature 1.6, the trainer assumes 1", _set(temperature=1.6)
        ),
        "R04": RlFault("the verifier accepts nothing", _set(verifier=_broken)),
        "R05": RlFault("the prompts are all too easy, or all too hard", _data),
        "R06": RlFault("each token of a response is paid for", _set(reward_per_token=0.5)),
        # A policy that has learnt to be brief needs two, and loses nothing by a limit of two.
        "R07": RlFault("responses are cut after 1 token", _set(length=1)),
        "R08": RlFault("rollouts are up to 24 steps old", _set(sync_every=24)),
        "R09": RlFault("advantages are divided by a spread of 0", _set(centers=False)),
        "R10": RlFault("the reference has untrained weights", _set(wrong_reference=True)),
        "R11": RlFault("the template has lost its last token", _set(has_equals=False)),
        "R12": RlFault("the verifier pays more for an answer of 0", _set(verifier=_hackable)),
    }
)
"""By the id of the cause."""


def fault_named(name: str) -> RlFault:
    if name not in RL_FAULTS:
        raise ConfigError(f"unknown fault {name!r}; choose from {', '.join(RL_FAULTS)}")
    return RL_FAULTS[name]


def onset_of(name: str, seed: int, steps: int) -> int:
    random = np.random.default_rng([seed, *name.encode()])
    return round(steps * random.uniform(_EARLIEST, _LATEST))


def run_rl(name: str, seed: int, out: Path, *, steps: int, mode: Mode = Mode.OBSERVE) -> Path:
    """Train a policy with a fault, or without one if the name is `clean`; return its folder.

    The folder has the journal and a `truth.json` with the onset.
    """
    run_dir, is_clean = out / f"{name}-seed{seed}", name == CLEAN
    fault = None if is_clean else fault_named(name)
    onset = 0 if fault is None else onset_of(name, seed, steps)
    train(
        RlConfig.from_seed(seed, steps),
        run_dir,
        fault=None if fault is None else fault.plant(seed),
        onset=onset,
        mode=mode,
    )
    truth = {
        "scenario": run_dir.name,
        "seed": seed,
        "cause": None if fault is None else name,
        "title": "a clean run" if fault is None else fault.title,
        "onset": None if fault is None else onset,
    }
    text = json.dumps(truth, indent=2) + "\n"
    (run_dir / "truth.json").write_text(text, encoding="utf-8")
    return run_dir
