"""`trimtab.watch`: builds a guard around a training run, bottom-up, on one rank or many."""

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from trimtab._version import __version__
from trimtab.core.config import Config, Mode
from trimtab.core.errors import ConfigError, TrimtabError
from trimtab.core.incidents import Incident
from trimtab.core.log import log_to_stderr_by_default
from trimtab.core.text import counted
from trimtab.journal import RunDirectory
from trimtab.journal.observer_process import OBSERVER_SETTING
from trimtab.live.arithmetic import math_of
from trimtab.live.deepspeed.engine import Engine, open_engine
from trimtab.live.deepspeed.engine_gate import EngineGate, NoEngineGate
from trimtab.live.deepspeed.pieces import EngineTelemetry
from trimtab.live.deepspeed.step_hooks import hooks_of
from trimtab.live.guard import Guard, NoGuard
from trimtab.live.host.batch_memory import BatchMemory, find_decode
from trimtab.live.host.no_recorder import NoRecorder
from trimtab.live.host.recorder import Recorder
from trimtab.live.host.rollback import RollbackEffect
from trimtab.live.loop.hang_watchdog import HangWatchdog
from trimtab.live.loop.state_guard import StateGuard
from trimtab.live.loop.step_hooks import open_monitor
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.measure.activations import Activations
from trimtab.live.measure.batch_facts import RowLosses
from trimtab.live.measure.loss_dtype import NAMES as DTYPE_NAMES
from trimtab.live.measure.pass_schedule import PassSchedule
from trimtab.live.measure.sites import find_sites
from trimtab.live.measure.state_hash import StateHash
from trimtab.live.measure.step_meter import StepMeter
from trimtab.live.measure.telemetry import Telemetry, TelemetrySampler
from trimtab.live.measure.time_budget import StepClock
from trimtab.live.optimizers import find_optimizers
from trimtab.live.protect.gate import Gate, NoGate
from trimtab.live.ranks.rank_group import (
    RankFacts,
    RankGroup,
    announce,
    find_ranks,
    is_plain,
    join_group,
)
from trimtab.live.recover.experiments import Experiments
from trimtab.live.recover.relaunch import Relaunch
from trimtab.live.recover.trial import StateTrial
from trimtab.live.recover.undo import Undo
from trimtab.live.recover.undo_plan import RunRequests
from trimtab.live.recover.undo_report import UndoReporter
from trimtab.live.shield import Shields, log
from trimtab.state.host_copy import local
from trimtab.state.snapshots import OtherState, Snapshots, free_memory, ranks_here
from trimtab.state.training_state import GivenState, parameters_of

if TYPE_CHECKING:
    from trimtab.state.checkpoints.run_checkpoints import Checkpoints


@dataclass(slots=True)
class LocalComponents:
    """The parts of a guard that do not know of other ranks."""

    optimizers: tuple[Optimizer, ...]
    parameters: list[torch.Tensor]
    num_parameters: int
    meter: StepMeter
    sampler: TelemetrySampler
    shields: Shields
    gate: Gate | NoGate
    row_losses: RowLosses
    """The losses of sequences, from the user or from the model's output."""
    clock: StepClock
    """The time of a step, for those who measure by time."""

    @classmethod
    def build(
        cls,
        model: nn.Module,
        optimizer: Any,
        config: Config,
        mode: Mode,
        *,
        sites: Any,
        is_first: bool,
        engine: Engine | None = None,
    ) -> "LocalComponents":
        """Make the parts; raises ConfigError for what cannot be watched.

        The parameters inside an `engine` are flat pieces, or none between updates: nothing is
        measured of them.
        """
        if engine is None or engine.is_plain:
            measured = optimizers = find_optimizers(optimizer, is_protected=mode.is_protected)
            parameters = parameters_of(optimizers)
            num_parameters = sum(parameter.numel() for parameter in parameters)
        else:
            measured, optimizers = (), engine.optimizers
            parameters, num_parameters = engine.trained, engine.num_parameters
        for one in measured:
            if (monitor := open_monitor(one)) is not None:
                where = f", in {monitor.recorder.run.root}" if monitor.recorder.is_recording else ""
                log.warning(
                    "trimtab: this %s is watched already%s: both guards record; close the one "
                    "that is over",
                    type(one).__name__,
                    where,
                )
        if not parameters:
            raise ConfigError("the optimizer has no parameters; add them before trimtab.watch")
        device = local(parameters[0]).device
        shields = Shields()
        arithmetic = math_of(parameters)
        meter = StepMeter(optimizers, device, arithmetic)
        live, row_losses, clock = config.live, RowLosses(), StepClock()
        found = find_sites(model, sites) if live.activations else []
        take_losses = row_losses.add_measured if is_first and live.activations else None
        if engine is None or engine.is_plain:
            telemetry = Telemetry(model, measured, meter.gradients, device)
        else:
            telemetry = EngineTelemetry(engine, meter.gradients, device)
        sampler = TelemetrySampler(
            telemetry,
            StateHash(model, measured, meter.gradients, device),
            Activations(model, device, found, take_losses),
            shields,
            PassSchedule(live.telemetry_every, clock),
            device,
        )
        gate: Gate | NoGate = NoGate()
        if engine is not None and not engine.is_plain:
            gate = NoEngineGate()
            if mode.is_protected:
                gate = EngineGate(model, shields.gate, arithmetic=arithmetic, device=device)
        elif mode.is_protected:
            gate = Gate(
                *(model, optimizers, device, shields.gate),
                arithmetic=arithmetic,
                promote=config.gate.promote,
            )
        return cls(
            *(optimizers, parameters, num_parameters, meter, sampler, shields, gate, row_losses),
            clock,
        )

    def undo(self) -> None:
        """Remove every trace of a start that failed."""
        self.sampler.close()
        self.gate.close()


class RankDiscovery:
    """Finds the other ranks: now if there are any, else at the first update."""

    def __init__(self, model: nn.Module, config: Config, mode: Mode) -> None:
        self._model = model
        self._config = config
        live = config.live
        self._settings = f"{mode.value} {live.lag_steps} {live.telemetry_every}"
        if mode is Mode.RECOVER:
            recover = config.recover
            self._settings += f" {recover.snapshot_every} {recover.rollback}"
        self._facts = RankFacts()
        self._device = torch.device("cpu")
        self._has_joined = False

    @property
    def _ranks(self) -> list[int]:
        if not dist.is_available() or not dist.is_initialized():
            return [0]
        return find_ranks(self._model, self._config.live.ranks)

    @property
    def place(self) -> int:
        """Of this process among the ranks."""
        ranks = self._ranks
        return 0 if len(ranks) == 1 else ranks.index(dist.get_rank())

    @property
    def world(self) -> int:
        """How many ranks there are."""
        return len(self._ranks)

    def set_facts(
        self, parts: LocalComponents | None, problem: Exception | None, shared: str
    ) -> None:
        """Set what this rank reports to the others, and what the first one tells them."""
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
            slots=parts.sampler.slots,
            names=hashlib.blake2b(repr(names).encode()).hexdigest(),
            shared=shared,
        )

    def join(self) -> RankGroup | None:
        """Agree with the other ranks; None if there are none."""
        if self._has_joined or not dist.is_available() or not dist.is_initialized():
            return None
        self._has_joined = True
        seconds = self._config.live.rank_timeout_seconds
        group = join_group(self._ranks, self._facts, self._device, seconds)
        is_replicated = group.num_holders == group.world and is_plain(self._model)
        return replace(group, is_replicated=is_replicated)


FACTS = ("step", "dtype", "seed", "link", "sites")
"""What a user may state about a run."""

GATE_STATE = "trimtab: gate"
"""The name of the gate among the state that is restored."""


def watch(
    model: nn.Module,
    optimizer: Any = None,
    *,
    run_dir: str | Path,
    mode: Mode | str = Mode.OBSERVE,
    config: Config | None = None,
    facts: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    batch_loss: Callable[[Any], torch.Tensor] | None = None,
    batch_text: Any = None,
    checkpoints: "Checkpoints | None" = None,
    on_incident: Callable[[Incident], None] | None = None,
    observer: bool = True,
    enabled: bool = True,
) -> Guard | NoGuard:
    """Watch a run from here on; use it as a context manager, before `torch.compile`.

    With several ranks, call it on all of them that train the model.

    Args:
        model: The model that is trained, wrapped or not; or a DeepSpeedEngine, without an
            optimizer. The losses of an engine are those that its `backward` is given.
        optimizer: A torch optimizer, a wrapper of one (Accelerate, torchtitan), or several.
        run_dir: The folder of the run; everything is written to its `trimtab/` folder.
        mode: "observe" changes no bit of what is trained; "protect" keeps bad steps from the
            weights, and makes Adam, AdamW, SGD and Adagrad fused; "recover" protects, and restores
            weights and optimizer from a snapshot if they were harmed.
        config: Settings; the defaults are meant to be right.
        facts: What trimtab cannot see: "step", the number of the first step (default: where
            `checkpoints` resumed, or 0); "dtype", the precision regime (fp32, bf16, fp16, fp8) if
            neither the parameters nor the first loss show it; "seed" and "link", for the
            post-mortem; "sites", the modules whose outputs are measured, by kind, where they are
            not found by themselves: {"attention": "layers.*.mixer", "logits": "readout"}.
        state: What belongs to the run besides model and optimizer, by name: the GradScaler of an
            fp16 run, in every mode; for "recover" also what follows the weights, such as an EMA.
            Anything with state_dict and load_state_dict. Schedulers are not touched.
        batch_loss: For "recover": computes the loss of a batch, for experiments on the last batches
            when an incident opens.
        batch_text: A tokenizer (an object with `decode(ids)`, or a function), if reports may show
            tokens and sequences as text, not by id alone. It is your data that is written there,
            so it is off by default.
        checkpoints: What `guard.checkpoint()` saves with and what gets verdicts.
        on_incident: Called with an incident when it opens, changes or closes, up to a second
            later; on the first rank, in a thread of its own.
        observer: Whether the first rank starts an observer, a process of its own that judges the
            run, writes post-mortems and says what happens. Without one the journal is whole, and
            `trimtab observe RUN` does the same, on any machine that sees the files.
        enabled: False gives a guard that does nothing and has the same interface.
    """
    log_to_stderr_by_default()
    _check_kinds(model, run_dir, config, batch_loss, on_incident, checkpoints)
    chosen = _mode(mode)
    decode = find_decode(batch_text)
    settings = config or Config()
    known = _known_facts(facts)
    step, sites = known.pop("step", None), known.pop("sites", None)
    if step is None:
        step = 0 if checkpoints is None else checkpoints.resumed.step
    engine, is_broken = open_engine(model if enabled else None)
    if is_broken or not enabled:
        if dist.is_initialized():
            announce(find_ranks(model, settings.live.ranks), RankFacts(is_enabled=False))
        return NoGuard(model, step, checkpoints)
    if engine is not None:
        chosen = engine.mode(chosen)
        model, optimizer = engine.module, engine.optimizers
    run = RunDirectory(Path(run_dir).absolute())
    ranks = RankDiscovery(model, settings, chosen)
    parts: LocalComponents | None = None
    recorder: Recorder | NoRecorder = NoRecorder()
    rollback = RollbackEffect()
    monitor: StepMonitor | None = None
    problem: Exception | None = None
    try:
        is_first = ranks.place == 0
        parts = LocalComponents.build(
            *(model, optimizer, settings, chosen), sites=sites, is_first=is_first, engine=engine
        )
        given = GivenState.of(state)
        if is_first:
            _make_folder(run.root)
            is_plain_engine = engine is None or engine.is_plain
            can_change = chosen.is_protected and is_plain_engine
            rollback = RollbackEffect.read(run, step, can_change=can_change)
            has_scaler = bool(getattr(given.scaler, "is_enabled", bool)())
            manifest = _manifest(
                *(model, parts, settings, ranks.world, chosen, known), has_scaler=has_scaler
            )
            recorder = Recorder(
                run,
                settings,
                manifest,
                first_step=step,
                shield=parts.shields.observer,
                rollback=rollback,
                give_up_after=None if checkpoints is None else checkpoints.give_up_after,
                on_incident=on_incident,
                batches=BatchMemory(
                    settings.live, run, decode=decode, shield=parts.shields.batches
                ),
                observer=observer and os.environ.get(OBSERVER_SETTING) != "off",
            )
    except Exception as error:  # reported below, when the other ranks know of it
        problem = error
    try:
        ranks.set_facts(parts, problem, rollback.to_text())
        if problem is None and parts is not None:
            monitor = StepMonitor(
                model,
                parts.optimizers,
                parts.meter,
                parts.sampler,
                parts.gate,
                recorder,
                parts.shields,
                config=settings.live,
                first_step=step,
                scaler=given.scaler,
                row_losses=parts.row_losses,
                clock=parts.clock,
                rollback=rollback,
                join=ranks.join,
                make_hooks=hooks_of(engine),
            )
            state_guard = StateGuard()
            if chosen is Mode.RECOVER:
                state_guard = _make_undo(model, monitor, settings, given, batch_loss, checkpoints)
            monitor.start(state_guard)
            if settings.live.hang_seconds > 0:
                HangWatchdog(
                    run,
                    ranks.place,
                    settings.live.hang_seconds,
                    monitor,
                    model,
                    ends_run=chosen is Mode.RECOVER,
                )
            watched = _watched(parts, chosen, ranks.world)
            guard = Guard(model, monitor, checkpoints, watched=watched)
            monitor.hooks.connect(guard.record)
            if checkpoints is not None:
                guard.load_state_dict(checkpoints.guard_state)
            if recorder.is_recording:
                line = "trimtab %s from step %d on; see: trimtab observe %s"
                log.info(line, watched, step, Path(run_dir))
                _warn_if_unheld(model, parts, chosen)
            return guard
        ranks.join()  # the others must not wait for this one
    except Exception as error:
        problem = problem or error
    if monitor is not None:
        monitor.close("could not start")
    if parts is not None:
        parts.undo()
    if recorder.is_recording:
        recorder.journal.close("could not start")
    if isinstance(problem, TrimtabError):  # the user can fix it, and nothing has been trained yet
        raise problem
    log.error("trimtab could not start and steps aside; training continues", exc_info=problem)
    return NoGuard(model, step, checkpoints)


def _check_kinds(
    model: Any, run_dir: Any, config: Any, batch_loss: Any, on_incident: Any, checkpoints: Any
) -> None:
    """Raise ConfigError for an argument of a wrong kind: a later error would not name it."""
    can_resume = checkpoints is None or hasattr(checkpoints, "resumed")
    for name, value, is_right, expected in (
        ("model", model, isinstance(model, nn.Module), "a torch.nn.Module"),
        ("run_dir", run_dir, isinstance(run_dir, str | Path), 'a folder, such as "runs/x1"'),
        ("config", config, isinstance(config, Config | None), "a trimtab.Config"),
        ("batch_loss", batch_loss, batch_loss is None or callable(batch_loss), "a function"),
        ("on_incident", on_incident, on_incident is None or callable(on_incident), "a function"),
        ("checkpoints", checkpoints, can_resume, "trimtab.Checkpoints(...)"),
    ):
        if not is_right:
            raise ConfigError(f"{name} must be {expected}; got {type(value).__name__}")


def _make_folder(root: Path) -> None:
    """Make the folder of a run; raises ConfigError, as no reader of it would name the argument."""
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        file = next((path for path in (root, *root.parents) if path.is_file()), None)
        why = f"{error.strerror}" if file is None else f"{file} is a file"
        raise ConfigError(
            f'run_dir "{root}" cannot be made: {why}; give a folder, such as "runs/x1"'
        ) from error


def _watched(parts: LocalComponents, mode: Mode, world: int) -> str:
    """Return what is watched, and how: `observes AdamW (7,012 parameters, 1 rank)`."""
    names = " and ".join(dict.fromkeys(type(one).__name__ for one in parts.optimizers))
    verb = {Mode.OBSERVE: "observes", Mode.PROTECT: "protects", Mode.RECOVER: "recovers"}[mode]
    return f"{verb} {names} ({parts.num_parameters:,} parameters, {counted(world, 'rank')})"


def _warn_if_unheld(model: nn.Module, parts: LocalComponents, mode: Mode) -> None:
    """Warn of parameters that are trained and in no watched optimizer."""
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    held = set(map(id, parts.parameters))
    outside = {name: p.numel() for name, p in trained.items() if id(p) not in held}
    num_outside, num_trained = sum(outside.values()), sum(p.numel() for p in trained.values())
    if not num_outside:  # empty ones are on other ranks
        return
    if not any(p.requires_grad for p in parts.parameters):
        log.warning(
            "trimtab: the optimizer holds frozen parameters only, and none of the %d that are "
            "trained: make it after the adapters are added",
            len(trained),
        )
    elif held.isdisjoint(map(id, model.parameters())):
        # No error: some code trains copies of the parameters and writes them into the model.
        log.warning(
            "trimtab: none of the optimizer's %s parameters belongs to the model: if the model was "
            "made anew or wrapped since, make the optimizer from model.parameters() after it",
            f"{parts.num_parameters:,}",
        )
    else:
        log.warning(
            "trimtab: %s of the model's %s trainable parameters, such as %s, are in no optimizer "
            "given to watch, so they are not %s: give it every optimizer, as in watch(model, "
            "[adamw, sgd], ...)",
            *(f"{num_outside:,}", f"{num_trained:,}", next(iter(outside))),
            "protected" if mode.is_protected else "watched",
        )


def _make_undo(
    model: nn.Module,
    monitor: StepMonitor,
    settings: Config,
    given: GivenState,
    batch_loss: Callable[[Any], torch.Tensor] | None,
    checkpoints: "Checkpoints | None",
) -> Undo:
    """Make what takes snapshots and restores them."""
    shields, requests = monitor.shields, RunRequests()
    others = OtherState(model, given.scaler, {**given.others, GATE_STATE: monitor.gate})

    def budget() -> int:
        group = monitor.sync.ranks.group
        memory = free_memory() / ranks_here(group.world, group.num_here)
        return int(settings.recover.memory_share * memory)

    doubt = None if checkpoints is None else checkpoints.give_up_after
    reporter = UndoReporter(monitor, shields.reports, doubt)
    polls = [reporter.poll]
    if monitor.recorder.is_recording and checkpoints is not None:
        proposed = Relaunch(
            monitor.recorder,
            settings.ladder,
            shields.proposals,
            proven_step=checkpoints.proven_step,
            relaunch=requests.relaunch,
        )
        polls.append(proposed.poll)
    experiments = None
    if batch_loss is not None:
        experiments = Experiments(model, batch_loss, monitor, shields.experiments)
        polls.append(experiments.poll)
    snapshots = Snapshots(monitor.optimizers, others, budget=budget)
    trial = StateTrial(
        model,
        monitor,
        snapshots,
        experiments,
        shields.trials,
        rollback=settings.recover.rollback,
        batch_loss=batch_loss,
        lag=settings.live.lag_steps,
    )
    polls.append(partial(shields.trials.call, "trial of states", trial.poll))
    if batch_loss is None and not trial.is_off and monitor.recorder.is_recording:
        log.info(
            "trimtab: no batch_loss was given: loss spikes are reported, and no rollback is "
            "proposed (docs/recover.md)"
        )
    return Undo(
        model,
        monitor,
        snapshots,
        settings.recover,
        shields.recovery,
        lag=settings.live.lag_steps,
        requests=requests,
        report=reporter,
        polls=polls,
        experiments=experiments,
        trial=trial,
        scaler=given.scaler,
    )


def _known_facts(given: Mapping[str, Any] | None) -> dict[str, Any]:
    facts = dict(given or {})
    for name in facts:
        if name not in FACTS:
            raise ConfigError(f"facts has no {name!r}; known: {', '.join(FACTS)}")
    return facts


def _mode(name: Mode | str) -> Mode:
    try:
        return Mode(name)
    except ValueError:
        known = ", ".join(mode.value for mode in Mode)
        raise ConfigError(f"mode is {name!r}; it must be one of: {known}") from None


def _settings_of(optimizers: tuple[Optimizer, ...]) -> dict[str, float]:
    """Return the settings that make some causes more likely; of several groups, the largest."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    given = [g["betas"] for g in groups if isinstance(g.get("betas"), tuple | list)]
    betas = [float(pair[1]) for pair in given if len(pair) > 1]
    epsilons = [float(g["eps"]) for g in groups if isinstance(g.get("eps"), float)]
    found = {"beta2": betas, "epsilon": epsilons}
    return {name: max(values) for name, values in found.items() if values}


def _manifest(
    model: nn.Module,
    parts: LocalComponents,
    config: Config,
    world: int,
    mode: Mode,
    facts: dict[str, Any],
    *,
    has_scaler: bool,
) -> dict[str, Any]:
    of_parameters = DTYPE_NAMES.get(parts.parameters[0].dtype)
    # Parameters are fp32 under autocast as well: then the first loss shows in what it was computed.
    dtype = facts.get("dtype") or (None if of_parameters == "fp32" else of_parameters)
    return {
        "schema": 1,
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "trimtab": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "world": world,
        "model": type(model).__name__,
        "num_parameters": parts.num_parameters,
        "optimizers": [type(optimizer).__name__ for optimizer in parts.optimizers],
        **_settings_of(parts.optimizers),
        "config": config.to_dict(),
        "mode": mode.value,
        "dtype": dtype or ("fp16" if has_scaler else None),
        "parameter_dtype": of_parameters,
        "seed": facts.get("seed"),
        "link": facts.get("link"),
    }
