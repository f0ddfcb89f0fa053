"""`trimtab.watch`: puts a guard around a training run."""

import platform
import time
from collections.abc import Callable, Mapping, Sequence
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
from trimtab.journal import RunDirectory
from trimtab.live.guard import Guard
from trimtab.live.host.batch_memory import BatchMemory, find_decode
from trimtab.live.host.run_recorder import RunRecorder
from trimtab.live.host.ship_process import with_sinks
from trimtab.live.loop.hang_watchdog import HangWatchdog
from trimtab.live.loop.step_monitor import StepMonitor
from trimtab.live.no_guard import NoGuard
from trimtab.live.optimizers import parameters_of
from trimtab.live.parts import Parts
from trimtab.live.protect.gate_reporter import report_promotion
from trimtab.live.ranks.agreement import RankFacts
from trimtab.live.ranks.rank_group import announce, find_ranks
from trimtab.live.recover.decide.controller import Controller
from trimtab.live.recover.decide.experimenting import Experimenting
from trimtab.live.recover.experiments.questions import Answers
from trimtab.live.recover.inputs import as_schedulers, as_state, require_schedulers
from trimtab.live.recover.quarantine import read_quarantine
from trimtab.live.recover.recovery import Recovery
from trimtab.live.shield import log
from trimtab.live.starting_ranks import StartingRanks
from trimtab.state.training_state import TrainingState

GATE_STATE = "trimtab: gate"
"""The name of the gate among the state that returns with the run."""

if TYPE_CHECKING:
    from trimtab.state.checkpoints.run_checkpoints import Checkpoints


def watch(
    model: nn.Module,
    optimizer: Any,
    *,
    run_dir: str | Path,
    mode: Mode | str = Mode.OBSERVE,
    config: Config | None = None,
    scaler: Any = None,
    step: int | None = None,
    dtype: str | None = None,
    seed: int | None = None,
    link: str | None = None,
    scheduler: Any = None,
    state: Mapping[str, Any] | None = None,
    batch_loss: Callable[[Any], torch.Tensor] | None = None,
    tokenizer: Any = None,
    batch_text: bool = False,
    on_incident: Callable[[Incident], None] | None = None,
    ship: Sequence[str] = (),
    process_group: Any = None,
    replicas: int | None = None,
    checkpoints: "Checkpoints | None" = None,
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
        step: The number of the first step; default: where `checkpoints` resumed, or 0.
        dtype: The precision regime (fp32, bf16, fp16, fp8), if it is not that of the parameters.
        seed: The run's seed, for the post-mortem.
        link: A link to the run, for the post-mortem.
        scheduler: For "recover": the learning rate scheduler, or several of them.
        state: For "recover": what else must return with the run, by name, such as an EMA: anything
            with state_dict and load_state_dict.
        batch_loss: For "recover": computes the loss of a batch of the loader, to find out whether
            the weights are damaged.
        tokenizer: What turns token ids into text: an object with `decode(ids)`, or a function.
        batch_text: Whether reports may show tokens and sequences as text, not by id alone. It is
            your data that is written there, so it is off by default.
        on_incident: Called with an incident when it opens, changes or closes; on the first rank,
            in a thread of its own.
        ship: Where the run is sent, such as ["mlflow", "alerts"], by a process of its own; added
            to the setting `ship.to`.
        process_group: The ranks that train the model, if not all do and it is not in a DDP of
            theirs.
        replicas: How many ranks hold the same part of parameters that differ between ranks
            (experts), if that is too much to compare.
        checkpoints: What `guard.checkpoint()` saves with and what gets verdicts.
        enabled: False gives a guard that does nothing and has the same interface.
    """
    chosen = _mode(mode)
    decode = find_decode(tokenizer, batch_text=batch_text)
    if step is None:
        step = 0 if checkpoints is None else checkpoints.resumed.step
    if not enabled:
        if dist.is_initialized():
            announce(find_ranks(model, process_group), RankFacts(is_enabled=False))
        return NoGuard(model, step, checkpoints)
    settings = with_sinks(config or Config(), ship)
    facts = {"mode": chosen.value, "dtype": dtype, "seed": seed, "link": link}
    run = RunDirectory(Path(run_dir).absolute())
    quarantined = read_quarantine(run.quarantine) if chosen is Mode.RECOVER else ()
    ranks = StartingRanks(model, process_group, settings, chosen, quarantined)
    parts: Parts | None = None
    problem: Exception | None = None
    try:
        parts = Parts.build(model, optimizer, settings, chosen)
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
                batches=BatchMemory(
                    settings.live, run.incidents, decode=decode, shield=parts.shields.batches
                ),
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
            parts.report_promotion = lambda name: report_promotion(
                monitor.recorder, monitor.next_step, name
            )
            if settings.live.hang_seconds > 0:
                HangWatchdog(
                    run,
                    ranks.place,
                    settings.live.hang_seconds,
                    monitor,
                    ends_run=chosen is Mode.RECOVER,
                )
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
                    probes=settings.probes,
                    settle=None if checkpoints is None else checkpoints.wait,
                )
                if checkpoints is not None and checkpoints.has_model:
                    recovery.replay.load_proven = checkpoints.load_proven
                answers = Answers(lambda: monitor.recorder, parts.shields.host)
                recovery.replay.on_answer = answers
                if parts.recorder is not None and settings.ladder.enabled:
                    experimenting = Experimenting(parts.recorder, recovery.order, settings.probes)
                    recovery.controller = Controller(
                        parts.recorder,
                        settings.ladder,
                        recovery.order,
                        recovery.snapshots.keep_before,
                        experimenting,
                    )
                    answers.then = experimenting.on_answer
            guard = Guard(model, monitor, recovery, checkpoints)
            if checkpoints is not None:
                guard.load_state_dict(checkpoints.guard_state)
            return guard
        ranks.join()  # the others must not wait for this one
    except Exception as error:
        problem = problem or error
    if parts is not None:
        parts.undo()
    if isinstance(problem, TrimtabError):  # the user can fix it, and nothing has been trained yet
        raise problem
    log.error("trimtab could not start and steps aside; training continues", exc_info=problem)
    return NoGuard(model, step, checkpoints)


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
