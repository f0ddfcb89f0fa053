"""A small training script that saves, stops and resumes, rightly or with one thing left out."""

import logging
import random
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

import trimtab
from tests.kit.observing import observe
from tests.kit.tiny import Tiny, batches, loss_of
from trimtab.core.findings import HARMLESS, NOT_RESTORED, Symptom
from trimtab.core.incidents import Incident
from trimtab.journal import AUDIT_EVENT, RunDirectory, read_journal
from trimtab.state.rng import get_random_state, set_random_state

SAVE_EVERY, STEPS_AFTER = 20, 20
EPOCH = 70
WARMUP, TOTAL = 10, 400

WRONG: dict[str, Symptom] = {
    "moments lost": Symptom.MOMENTS_NOT_RESTORED,
    "Adam step lost": Symptom.OPTIMIZER_STEP_NOT_RESTORED,
    "LR restarted": Symptom.LR_RESTARTED,
    "RNG lost": Symptom.RNG_NOT_RESTORED,
    "data restarted": Symptom.DATA_RESTARTED,
    "data off by one": Symptom.DATA_OFF,
    "wrong checkpoint": Symptom.WRONG_CHECKPOINT,
    "scaler lost": Symptom.SCALER_NOT_RESTORED,
}
"""The wrong resumes, and what must be named first."""

RIGHT = ("at the end", "earlier checkpoint", "planned change", "larger batch", "twice")
"""The right resumes."""


@dataclass(frozen=True)
class Setup:
    """What a script is like; the seed decides."""

    seed: int
    is_adam: bool
    is_half: bool
    """fp16 autocast."""
    loader: str
    """Stateful, shuffled (and stateful), or a plain list."""
    saves_guard: bool
    """Whether `guard.state_dict()` is part of the checkpoint; else only `event("checkpoint")`."""

    @classmethod
    def of(cls, seed: int, kind: str) -> "Setup":
        return cls(
            seed=seed,
            is_adam=seed % 2 == 0 or kind == "Adam step lost",
            is_half=seed % 5 == 4,
            loader=("stateful", "shuffled", "plain")[seed % 3],
            saves_guard=seed % 4 != 3 or kind == "RNG lost",
        )


@dataclass(frozen=True)
class Outcome:
    """What a resume has raised."""

    first_step: int
    named: tuple[str, ...]
    """The symptoms that the audit has journalled, in order."""
    named_at: int | None
    """The step that was being made when the log named the first one."""
    incidents: tuple[Incident, ...]
    """Of the resumed part, as the live guard has them."""
    diagnosed: tuple[str, ...]
    """The causes of the first incident and the notes, as `trimtab diagnose` has them."""


class Script:
    """Everything that a training script makes before its loop."""

    def __init__(self, setup: Setup, *, batch_size: int = 4) -> None:
        random.seed(setup.seed)
        np.random.seed(setup.seed)  # noqa: NPY002 (as scripts do)
        torch.manual_seed(setup.seed)
        self.setup = setup
        self.model = Tiny()
        parameters = self.model.parameters()
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(parameters, lr=3e-3)
            if setup.is_adam
            else torch.optim.SGD(parameters, lr=3e-2, momentum=0.9)
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=16)
        self.samples = torch.cat(batches(EPOCH, seed=setup.seed)).split(1)
        self.loader: Any = None
        if setup.loader != "plain":
            with warnings.catch_warnings():  # torchdata 0.11 with torch 2.13
                warnings.filterwarnings("ignore", "'set_vital' is deprecated")
                self.loader = StatefulDataLoader(
                    self.samples,
                    batch_size=batch_size,
                    shuffle=setup.loader == "shuffled",
                    collate_fn=torch.cat,
                )
        self.plain = list(torch.cat(self.samples).split(batch_size))
        self.loader_states: deque[Any] = deque(maxlen=2)
        """After the last two batches."""
        self.position = 0
        """Batches that were trained on."""
        self.step = 0
        """The step that is being made."""

    def save(self, guard: Any, step: int) -> dict[str, Any]:
        if not self.setup.saves_guard:
            guard.event("checkpoint", name=f"step-{step}")
        return {
            "step": step,
            "position": self.position,
            "model": _copy(self.model.state_dict()),
            "optimizer": _copy(self.optimizer.state_dict()),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "loader_before": self.loader_states[0],
            "loader": self.loader_states[-1],
            "random": get_random_state(),
            "guard": guard.state_dict() if self.setup.saves_guard else {},
        }

    def load(self, state: dict[str, Any], *, without: str = "") -> None:
        """Load a checkpoint, with one thing left out."""
        self.model.load_state_dict(state["model"])
        if without != "optimizer":
            self.optimizer.load_state_dict(_copy(state["optimizer"]))
        if without != "scheduler":
            self.scheduler.load_state_dict(state["scheduler"])
        if without != "scaler":
            self.scaler.load_state_dict(state["scaler"])
        self.position = 0 if without == "data" else state["position"]
        if self.loader is not None and without != "data":
            self.loader.load_state_dict(_copy(state["loader"]))
        if without != "random":
            set_random_state(state["random"])

    def epoch(self, guard: Any) -> Iterable[Any]:
        """The steps until the data ends."""
        steps: Iterable[Any]
        if self.loader is not None:
            steps = guard.steps(self.loader)
        else:
            start = self.position % len(self.plain)
            steps = guard.steps(self.plain[start:], data_position=self.position)
        return steps

    def train(self, guard: Any, first: int, last: int, checkpoints: dict[int, Any]) -> None:
        """Train steps `first` to `last` - 1, saving as it goes."""
        step = first
        while step < last:
            for batch_step in self.epoch(guard):
                self.step = step
                self.optimizer.zero_grad()
                for batch in batch_step:
                    with torch.autocast("cpu", torch.float16, enabled=self.setup.is_half):
                        loss = loss_of(self.model, batch)
                    guard.record(loss=loss, tokens=batch.numel())
                    self.scaler.scale(loss).backward()
                    self.position += 1
                self.scaler.unscale_(self.optimizer)
                guard.clip_grad_norm_(1.0)
                self.scaler.step(self.optimizer)
                self.scaler.update()
                self.scheduler.step()
                step += 1
                self.loader_states.append(_copy(self.loader.state_dict()) if self.loader else None)
                if step % SAVE_EVERY == 0 or step == last:
                    checkpoints[step] = self.save(guard, step)
                if step == last:
                    return

    def watch(self, folder: Path, step: int) -> Any:
        return trimtab.watch(
            self.model,
            self.optimizer,
            run_dir=folder,
            facts={"step": step},
            state={"scaler": self.scaler},
        )


def rate(step: int) -> float:
    """Warm-up, then a cosine."""
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.9 * (0.5 + 0.5 * float(np.cos(np.pi * (step - WARMUP) / (TOTAL - WARMUP))))


def resume(kind: str, seed: int, folder: Path) -> Outcome:
    """Train, stop, and resume in one of the ways of WRONG or RIGHT."""
    setup = Setup.of(seed, kind)
    length = 60 + seed % 7
    checkpoints: dict[int, Any] = {}
    script = Script(setup)
    with script.watch(folder, 0) as guard:
        script.train(guard, 0, length, checkpoints)
    goes_back = kind == "earlier checkpoint" or (kind in WRONG and seed % 2 == 1)
    first = 40 if goes_back else length
    if kind == "twice":
        script = Script(setup)
        script.load(checkpoints[first])
        with script.watch(folder, first) as guard:
            guard.load_state_dict(checkpoints[first]["guard"])
            script.train(guard, first, first + 15, checkpoints)
        first += 15
    script = Script(setup, batch_size=8 if kind == "larger batch" else 4)
    state = checkpoints[first]
    _load(script, kind, seed, state, checkpoints)
    before = len(read_journal(RunDirectory(folder)).block)
    with _logged(script) as named_at, script.watch(folder, first) as guard:
        source = checkpoints[20] if kind == "wrong checkpoint" and seed % 2 == 0 else state
        guard.load_state_dict(source["guard"])
        if kind in ("planned change", "larger batch"):
            guard.event("planned change", what=kind)
        script.train(guard, first, first + STEPS_AFTER, checkpoints)
    return _outcome(folder, before, first, named_at, observe(folder))


def _load(
    script: Script, kind: str, seed: int, state: dict[str, Any], checkpoints: dict[int, Any]
) -> None:
    is_even = seed % 2 == 0
    match kind:
        case "moments lost":
            script.load(state, without="optimizer" if is_even else "")
            for part in script.optimizer.state.values():
                for value in part.values():
                    if isinstance(value, torch.Tensor) and value.dim() > 0:
                        value.zero_()
        case "Adam step lost":
            script.load(state)
            for part in script.optimizer.state.values():
                part["step"] = torch.zeros_like(part["step"])
        case "LR restarted":
            script.load(state, without="scheduler")
            if is_even:  # the rate of the optimizer is lost too, as where only moments are loaded
                for group in script.optimizer.param_groups:
                    group["lr"] = group["initial_lr"] * rate(0)
        case "RNG lost":
            script.load(state, without="random")
        case "data restarted":
            script.load(state, without="data")
        case "data off by one":
            by = 1 if (seed // 2) % 2 == 0 else -1
            script.load(state, without="data")
            if script.loader is None:
                script.position = state["position"] + by
            else:
                script.loader.load_state_dict(_loader_state(script, state, by))
            set_random_state(state["random"])
        case "wrong checkpoint":
            script.load(checkpoints[20] if is_even else state)
            if not is_even:
                script.model.load_state_dict(checkpoints[20]["model"])
        case "scaler lost":
            script.load(state, without="scaler")
        case "larger batch":
            script.load({**state, "position": state["position"] // 2}, without="data")
            set_random_state(state["random"])
        case "planned change":
            script.load(state)
            for group in script.optimizer.param_groups:
                group["lr"], group["weight_decay"] = 0.3 * group["lr"], 0.02
            script.scheduler.base_lrs = [0.3 * lr for lr in script.scheduler.base_lrs]
        case _:
            script.load(state)


def _loader_state(script: Script, state: dict[str, Any], by: int) -> Any:
    """The state of the loader one batch later or earlier than at the save."""
    other = Script(script.setup)
    other.loader.load_state_dict(_copy(state["loader"]))
    if by > 0:
        next(iter(other.loader))
        return _copy(other.loader.state_dict())
    return state["loader_before"]


@contextmanager
def _logged(script: Script) -> Iterator[list[int]]:
    """The steps that were being made when the log said something about the resume."""
    steps: list[int] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING and "resume at step" in record.getMessage():
                steps.append(script.step)

    listener = Listener()
    log = logging.getLogger("trimtab")
    log.addHandler(listener)
    try:
        yield steps
    finally:
        log.removeHandler(listener)


def _outcome(
    folder: Path, before: int, first: int, named_at: list[int], incidents: tuple[Incident, ...]
) -> Outcome:
    block = read_journal(RunDirectory(folder)).block
    last_tick = int(block.tick[before - 1])
    audits = [e for e in block.events if e.kind == AUDIT_EVENT and e.tick > last_tick]
    named = [sentence.split(" (")[0] for e in audits for sentence in e.facts["findings"]]
    report = trimtab.diagnose(folder)
    diagnosed = [i.cause.id for i in report.incidents if i.cause]
    return Outcome(
        first_step=first,
        named=tuple(named),
        named_at=named_at[0] if named_at else None,
        incidents=tuple(
            incident
            for incident in incidents
            if not HARMLESS.issuperset(incident.symptoms)  # this machine may be busy
            and any(finding.tick > last_tick for finding in incident.findings)
        ),
        diagnosed=(*diagnosed, *report.notes),
    )


def is_named(kind: str, outcome: Outcome) -> bool:
    """Whether a wrong resume was named, first and in time, and has opened an incident."""
    expected = WRONG[kind]
    if outcome.named_at is None or outcome.named[0] != expected or not outcome.incidents:
        return False
    in_time = outcome.named_at - outcome.first_step < STEPS_AFTER
    return in_time and expected in outcome.incidents[0].symptoms and expected in NOT_RESTORED


def _copy(state: Any) -> Any:
    if isinstance(state, torch.Tensor):
        return state.clone()
    if isinstance(state, dict):
        return {name: _copy(value) for name, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(_copy(value) for value in state)
    return state
