"""`trimtab.watch`: puts a guard around a training run."""

import hashlib
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from trimtab._version import __version__
from trimtab.core.config import Config, Mode
from trimtab.core.errors import ConfigError, TrimtabError
from trimtab.core.incidents import Incident
from trimtab.journal import RunDirectory
from trimtab.live.guard import Guard, NoGuard
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.loop.hang_watchdog import HangWatchdog
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.measure.activations import Activations
from trimtab.live.measure.slow_meter import SlowMeter
from trimtab.live.measure.step_meter import StepMeter
from trimtab.live.measure.telemetry import Telemetry
from trimtab.live.optimizers import find_optimizers, parameters_of
from trimtab.live.protect.gate import Gate
from trimtab.live.protect.gate_reporter import report_promotion
from trimtab.live.ranks.rank_group import RankFacts, RankGroup, announce, find_ranks, join_group
from trimtab.live.ranks.shards import local
from trimtab.live.recover.decide.controller import Controller
from trimtab.live.recover.inputs import as_schedulers, as_state, require_schedulers
from trimtab.live.recover.quarantine import read_quarantine
from trimtab.live.recover.recovery import Recovery
from trimtab.live.shield import Shields, log
from trimtab.restore.training_state import TrainingState

GATE_STATE = "trimtab: gate"
"""The name of the gate among the state that returns with the run."""


def watch(
    model: nn.Module,
    optimizer: Any,
    *,
    run_dir: str | Path,
    mode: Mode | str = Mode.OBSERVE,
    config: Config | None = None,
    scaler: Any = None,
    step: int = 0,
    dtype: str | None = None,
    seed: int | None = None,
    link: str | None = None,
    scheduler: Any = None,
    state: Mapping[str, Any] | None = None,
    batch_loss: Callable[[Any], torch.Tensor] | None = None,
    on_incident: Callable[[Incident], None] | None = None,
    process_group: Any = None,
    replicas: int | None = None,
    enabled: bool = True,
) -> Guard | NoGuard:
    """Watch a run from here on; use it as a context manager, before `torch.compile`.

    With several ranks, call it on all of them that train the model.

    Args:
        model: The model that is trained, wrapped or not.
        optimizer: A torch optimizer, a wrapper of one (Accelerate, torchtitan), or several.
        run_dir: The folder of the run; everything is written to its `trimtab/` folder.
        mode: "observe" changes no bit of what is trained; "protect" keeps bad steps from the
            weights, and makes Adam, AdamW, SGD and Adagrad fused; "recover" protects and can
            return to an earlier step.
        config: Settings; the defaults are meant to be right.
        scaler: The GradScaler of an fp16 run.
        step: The number of the first step; after a resume, where the run continues.
        dtype: The precision regime (fp32, bf16, fp16, fp8), if it is not that of the parameters.
        seed: The run's seed, for the post-mortem.
        link: A link to the run, for the post-mortem.
        scheduler: For "recover": the learning rate scheduler, or several of them.
        state: For "recover": what else must return with the run, by name, such as an EMA: anything
            with state_dict and load_state_dict.
        batch_loss: For "recover": computes the loss of a batch of the loader, to find out whether
            the weights are damaged.
        on_incident: Called with an incident when it opens, changes or closes; on the first rank,
            in a thread of its own.
        process_group: The ranks that train the model, if not all do and it is not in a DDP of
            theirs.
        replicas: How many ranks hold the same part of parameters that differ between ranks
            (experts), if that is too much to compare.
        enabled: False gives a guard that does nothing and has the same interface.
    """
    chosen = _mode(mode)
    if not enabled:
        if dist.is_initialized():
            announce(find_ranks(model, process_group), RankFacts(is_enabled=False))
        return NoGuard(model, step)
    settings = config or Config()
    facts = {"mode": chosen.value, "dtype": dtype, "seed": seed, "link": link}
    run = RunDirectory(Path(run_dir).absolute())
    quarantined = read_quarantine(run.quarantine) if chosen is Mode.RECOVER else ()
    ranks = _Ranks(model, process_group, settings, chosen, quarantined)
    parts: _Parts | None = None
    problem: Exception | None = None
    try:
        parts = _Parts.build(model, optimizer, settings, chosen)
        schedulers, others = as_schedulers(scheduler), as_state(state)
        if chosen is Mode.RECOVER:
            require_schedulers(parts.optimizers, schedulers)
        if ranks.place == 0:
            manifest = _manifest(model, parts.optimizers, settings, ranks.world, facts)
            parts.recorder = RunRecorder(
                run,
                settings,
                manifest,
                first_step=step,
                shield=parts.shields.judge,
                on_incident=on_incident,
            )
    except Exception as error:  # reported below, when the other ranks know of it
        problem = error
    try:
        ranks.set_facts(parts, problem)
        if problem is None and parts is not None:
            monitor = StepMonitor(
                model,
                parts.optimizers,
                parts.meter,
                parts.slow,
                parts.gate,
                parts.recorder,
                parts.shields,
                config=settings.live,
                first_step=step,
                scaler=scaler,
                replicas=replicas,
                join=ranks.join,
            )
            parts.report_promotion = partial(_report_promotion, monitor)
            recovery = None
            if chosen is Mode.RECOVER and parts.gate is not None:
                recovery = Recovery(
                    TrainingState(
                        model,
                        parts.optimizers,
                        schedulers=schedulers,
                        scaler=scaler,
                        state={**others, GATE_STATE: parts.gate},
                    ),
                    monitor,
                    settings.recover,
                    parts.shields.recovery,
                    quarantined=quarantined,
                    quarantine_file=run.quarantine,
                    batch_loss=batch_loss,
                )
                if parts.recorder is not None and settings.ladder.enabled:
                    recovery.controller = Controller(
                        parts.recorder,
                        settings.ladder,
                        recovery.order,
                        recovery.snapshots.keep_before,
                    )
            if settings.live.hang_seconds > 0:
                HangWatchdog(
                    run,
                    ranks.place,
                    settings.live.hang_seconds,
                    monitor,
                    ends_run=chosen is Mode.RECOVER,
                )
            return Guard(model, monitor, recovery)
        ranks.join()  # the others must not wait for this one
    except Exception as error:
        problem = problem or error
    if parts is not None:
        parts.undo()
    if isinstance(problem, TrimtabError):  # the user can fix it, and nothing has been trained yet
        raise problem
    log.error("trimtab could not start and steps aside; training continues", exc_info=problem)
    return NoGuard(model, step)


@dataclass(slots=True)
class _Parts:
    """The parts of a guard that do not know of other ranks."""

    optimizers: tuple[Optimizer, ...]
    meter: StepMeter
    slow: SlowMeter
    shields: Shields
    gate: Gate | None = None
    recorder: RunRecorder | None = None
    report_promotion: Callable[[str], None] = lambda name: None

    @classmethod
    def build(cls, model: nn.Module, optimizer: Any, config: Config, mode: Mode) -> "_Parts":
        optimizers = find_optimizers(optimizer, is_protected=mode.is_protected)
        parameters = parameters_of(optimizers)
        if not parameters:
            raise ConfigError("the optimizer has no parameters; add them before trimtab.watch")
        device = local(parameters[0]).device
        shields = Shields()
        meter = StepMeter(optimizers, device)
        live = config.live
        decides = mode is Mode.RECOVER and config.ladder.enabled
        slow = SlowMeter(
            Telemetry(model, optimizers, meter.gradients, device),
            Activations(model, device) if live.activations else None,
            shields,
            live.telemetry_every,
            device,
            config.recover.snapshot_every if decides else None,
        )
        parts = cls(optimizers, meter, slow, shields)
        if mode.is_protected:
            parts.gate = Gate(
                model,
                optimizers,
                config.gate,
                device,
                shields.gate,
                lambda name: parts.report_promotion(name),
            )
        return parts

    def undo(self) -> None:
        """Remove every trace of a start that failed."""
        self.slow.disarm()
        if self.gate is not None:
            self.gate.close()
        if self.recorder is not None:
            self.recorder.journal.close("could not start")


class _Ranks:
    """Finds the other ranks: now if there are any, else at the first update."""

    def __init__(
        self,
        model: nn.Module,
        process_group: Any,
        config: Config,
        mode: Mode,
        quarantined: tuple[int, ...],
    ) -> None:
        self._model = model
        self._process_group = process_group
        self._config = config
        self._quarantined = quarantined
        live = config.live
        self._settings = f"{mode.value} {live.lag_steps} {live.telemetry_every}"
        if mode is Mode.RECOVER:
            recover = config.recover
            self._settings += f" {recover.snapshot_every} {recover.oldest_steps}"
        self._facts = RankFacts()
        self._device = torch.device("cpu")
        self._has_joined = False

    @property
    def _ranks(self) -> list[int]:
        if not dist.is_available() or not dist.is_initialized():
            return [0]
        return find_ranks(self._model, self._process_group)

    @property
    def place(self) -> int:
        """Of this process among the ranks."""
        ranks = self._ranks
        return 0 if len(ranks) == 1 else ranks.index(dist.get_rank())

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self._ranks)

    def set_facts(self, parts: _Parts | None, problem: Exception | None) -> None:
        """Set what this rank reports to the others."""
        if parts is None:
            self._facts = RankFacts(error=str(problem), settings=self._settings)
            return
        names = sorted(
            f"{name} {tuple(parameter.shape)}" for name, parameter in self._model.named_parameters()
        )
        self._device = parts.meter.device
        self._facts = RankFacts(
            error=None if problem is None else str(problem),
            num_optimizers=len(parts.optimizers),
            settings=self._settings,
            slots=parts.slow.slots,
            quarantined=self._quarantined,
            names=hashlib.blake2b(repr(names).encode()).hexdigest(),
        )

    def join(self) -> RankGroup | None:
        """Agree with the other ranks; None if there are none."""
        if self._has_joined or not dist.is_available() or not dist.is_initialized():
            return None
        self._has_joined = True
        seconds = self._config.live.rank_timeout_seconds
        return join_group(self._ranks, self._facts, self._device, seconds)


def _report_promotion(monitor: StepMonitor, name: str) -> None:
    """An optimizer now runs fused and did not before."""
    if monitor.recorder is not None:
        report_promotion(monitor.recorder, monitor.next_step, name)


def _mode(name: Mode | str) -> Mode:
    try:
        return Mode(name)
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise ConfigError(f"mode is {name!r}; it must be one of: {known}") from None


def _manifest(
    model: nn.Module,
    optimizers: tuple[Optimizer, ...],
    config: Config,
    world: int,
    facts: dict[str, Any],
) -> dict[str, Any]:
    parameters = parameters_of(optimizers)
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
    return {
        "schema": 1,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "trimtab": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "world": world,
        "model": type(model).__name__,
        "num_parameters": sum(parameter.numel() for parameter in parameters),
        "optimizers": [type(optimizer).__name__ for optimizer in optimizers],
        "config": config.to_dict(),
        **facts,
        "dtype": facts["dtype"] or names.get(parameters[0].dtype),
    }
