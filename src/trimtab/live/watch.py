"""`trimtab.watch`: puts a guard around a training run."""

import platform
import time
from collections.abc import Callable, Mapping
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
from trimtab.live.recover.inputs import GivenState, require_schedulers
from trimtab.live.recover.quarantine import read_quarantine
from trimtab.live.recover.recovery import Recovery
from trimtab.live.shield import log
from trimtab.live.starting_ranks import StartingRanks
from trimtab.state.training_state import TrainingState

FACTS = ("step", "dtype", "seed", "link")
"""What a user may state about a run."""

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
    facts: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    batch_loss: Callable[[Any], torch.Tensor] | None = None,
    batch_text: Any = None,
    checkpoints: "Checkpoints | None" = None,
    on_incident: Callable[[Incident], None] | None = None,
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
        facts: What trimtab cannot see: "step", the number of the first step (default: where
            `checkpoints` resumed, or 0); "dtype", the precision regime (fp32, bf16, fp16, fp8) if
            it is not that of the parameters; "seed" and "link", for the post-mortem.
        state: What belongs to the run besides model and optimizer, by name: the GradScaler of an
            fp16 run, in every mode; for "recover" the learning rate schedulers and what else must
            return with the run, such as an EMA. Anything with state_dict and load_state_dict.
        batch_loss: For "recover": computes the loss of a batch of the loader, to find out whether
            the weights are damaged.
        batch_text: A tokenizer (an object with `decode(ids)`, or a function), if reports may show
            tokens and sequences as text, not by id alone. It is your data that is written there,
            so it is off by default.
        checkpoints: What `guard.checkpoint()` saves with and what gets verdicts.
        on_incident: Called with an incident when it opens, changes or closes; on the first rank,
            in a thread of its own.
        enabled: False gives a guard that does nothing and has the same interface.
    """
    chosen = _mode(mode)
    decode = find_decode(batch_text)
    settings = config or Config()
    known = _known_facts(facts)
    step = known.pop("step", None)
    if step is None:
        step = 0 if checkpoints is None else checkpoints.resumed.step
    if not enabled:
        if dist.is_initialized():
            announce(find_ranks(model, settings.live.ranks), RankFacts(is_enabled=False))
        return NoGuard(model, step, checkpoints)
    run = RunDirectory(Path(run_dir).absolute())
    quarantined = read_quarantine(run.quarantine) if chosen is Mode.RECOVER else ()
    ranks = StartingRanks(model, settings, chosen, quarantined)
    parts: Parts | None = None
    problem: Exception | None = None
    try:
        parts = Parts.build(model, optimizer, settings, chosen)
        given = GivenState.of(state)
        if chosen is Mode.RECOVER:
            require_schedulers(parts.optimizers, given.schedulers)
        if ranks.place == 0:
            manifest = _manifest(model, parts.optimizers, settings, ranks.world, chosen, known)
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
                scaler=given.scaler,
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
                others = {**given.others, GATE_STATE: parts.gate}
                recovery = _make_recovery(
                    TrainingState(
                        model,
                        parts.optimizers,
                        schedulers=given.schedulers,
                        scaler=given.scaler,
                        state=others,
                    ),
                    monitor,
                    parts,
                    settings,
                    run,
                    quarantined=quarantined,
                    batch_loss=batch_loss,
                    checkpoints=checkpoints,
                )
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


def _make_recovery(
    state: TrainingState,
    monitor: StepMonitor,
    parts: Parts,
    settings: Config,
    run: RunDirectory,
    *,
    quarantined: tuple[int | str, ...],
    batch_loss: Callable[[Any], torch.Tensor] | None,
    checkpoints: "Checkpoints | None",
) -> Recovery:
    """Make what takes snapshots and returns to them; on the first rank, also what decides it."""
    recovery = Recovery(
        state,
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
    return recovery


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


def _manifest(
    model: nn.Module,
    optimizers: tuple[Optimizer, ...],
    config: Config,
    world: int,
    mode: Mode,
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
        "mode": mode.value,
        "dtype": facts.get("dtype") or names.get(parameters[0].dtype),
        "seed": facts.get("seed"),
        "link": facts.get("link"),
    }
