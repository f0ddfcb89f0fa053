"""The reference trainer: one loop that reads top to bottom, watched by trimtab.

    corpus -> batches ---.
    model -> DDP, if any |
    AdamW, schedule      |-> [ evaluate ] -> forward, backward -> clip -> step -> [ checkpoint ]
    checkpoint, if any --'

The same code runs in one process or under torchrun, in fp32, bf16 or fp16, from the start or from a
checkpoint, and gives the same numbers as far as floating point permits.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import trimtab
from trimtab.core.config import Config, Mode
from trimtab.core.errors import ConfigError
from trimtab.journal import RunDirectory
from trimtab.journal.rollback import pending_rollback
from trimtab.lab.corpus.data import (
    Batch,
    CorpusSplit,
    DataConfig,
    Loader,
    TokenCorpus,
    WindowDataset,
)
from trimtab.lab.corpus.tokens import CorpusConfig, Progress, prepare_corpus
from trimtab.lab.model.gpt import Gpt, Signals
from trimtab.lab.model.optimizer import make_optimizer, make_schedule
from trimtab.lab.trainer import checkpoints
from trimtab.lab.trainer.checkpoints import RunClock
from trimtab.lab.trainer.engines import (
    Forward,
    LabRanks,
    build_model,
    join_ranks,
    set_gradient_sync,
)
from trimtab.lab.trainer.intervention import Intervention, RunParts
from trimtab.lab.trainer.train_config import Dtype, TrainConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of an evaluation."""

    loss: float
    """Mean cross-entropy over the held-out windows."""
    seconds: float
    """How long training was paused for it."""


class Evaluator:
    """Evaluates a model; all ranks must call it together."""

    def __init__(self, corpus: TokenCorpus, config: TrainConfig, ranks: LabRanks) -> None:
        data = DataConfig(batch_size=config.micro_batch_size, length=config.length)
        held_out = WindowDataset(
            corpus, data, split=CorpusSplit.HELD_OUT, rank=ranks.rank, world_size=ranks.size
        )
        self._batches = [held_out[position] for position in range(config.eval_batches)]
        self._dtype = config.dtype
        self._ranks = ranks

    @torch.no_grad()
    def evaluate(self, forward: Forward) -> Evaluation:
        """Return the mean loss over the held-out batches; synchronizes with the device."""
        started = time.perf_counter()
        device = self._ranks.device
        total = torch.zeros((), device=device)
        for batch in (batch.to(device) for batch in self._batches):
            with self._dtype.autocast(device):
                total += forward(batch.tokens, batch.targets).cross_entropy
        loss = self._ranks.mean(total / len(self._batches)).item()
        return Evaluation(loss=loss, seconds=time.perf_counter() - started)


EVERY_TENTH = Config.from_dict({"live": {"telemetry_every": 10}})
"""Everything at every tenth step, on whatever machine: judged runs must not depend on its speed."""

_KEPT_PARAMETERS = 10**8
"""Over all checkpoints that the guard keeps, about 1.2 GB; three at least."""

OnTrainStep = Callable[[int, Tensor], None]
"""Takes the number of steps done and this rank's last loss, still on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOutcome:
    """How a run ended."""

    first_step: int
    """0, or the step of the checkpoint that it was resumed from."""
    eval_loss: float
    """Loss on held-out text after the last step."""


def train(
    config: TrainConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    cache_dir: Path | None = None,
    on_text: Progress | None = None,
    on_step: OnTrainStep | None = None,
    mode: Mode = Mode.OBSERVE,
    guard_config: Config = EVERY_TENTH,
    intervention: Intervention | None = None,
    checkpoint_seconds: float | None = None,
    relaunch_before: int | None = None,
) -> TrainOutcome:
    """Train a model to its last step, from the first one or from its newest checkpoint.

    Args:
        config: What to train.
        run_dir: The folder of the run: its journal and its checkpoints.
        resume: Continue from the newest checkpoint; without one, start at step 0.
        cache_dir: Where token files are kept; None is the user's cache.
        on_text: Called with the progress of tokenizing, if the corpus is not in the cache.
        on_step: Called after each step.
        mode: Whether trimtab only observes, or also keeps bad steps out of the weights.
        guard_config: How trimtab watches the run.
        intervention: A fault or another change to the run.
        checkpoint_seconds: Time from one checkpoint of the guard to the next; None saves none.
        relaunch_before: Continue from the newest good checkpoint of the guard up to this step, or
            from the one that `trimtab rollback` asked for.
    """
    with join_ranks() as ranks:
        is_new = not resume and relaunch_before is None
        if is_new and (run_dir / "trimtab").exists():
            raise ConfigError(f"{run_dir} already has a run; resume it, or choose another folder")
        ranks.barrier()  # no rank may write there before all ranks have checked

        # Weights and data order have separate generators; this seed is for code you may add, such
        # as dropout.
        torch.manual_seed(config.seed)
        corpus = _corpus(config, ranks, cache_dir, on_text)
        evaluator = Evaluator(corpus, config, ranks)
        run, forward = build_run(config, corpus, ranks)
        newest = checkpoints.latest(run_dir / "checkpoints") if resume else None
        first_step = 0 if newest is None else checkpoints.load(newest, run)
        guarded = None
        if checkpoint_seconds is not None:
            guarded = trimtab.Checkpoints(
                run.model,
                run.optimizer,
                run_dir=run_dir,
                scheduler=run.scheduler,
                scaler=run.scaler if run.scaler.is_enabled() else None,
                every_seconds=checkpoint_seconds,
                keep=max(3, _KEPT_PARAMETERS // config.model.parameters),
            )
            if relaunch_before is not None:
                is_asked = pending_rollback(RunDirectory(run_dir).home) is not None
                first_step = guarded.resume(before=None if is_asked else relaunch_before).step
        if intervention is not None:
            run.clock.by_data = intervention.by_data
            run = intervention.attach(
                RunParts(
                    run=run,
                    forward=forward,
                    ranks=ranks,
                    config=config,
                    corpus=corpus,
                    first_step=first_step,
                )
            )

        with trimtab.watch(
            run.model,
            run.optimizer,
            run_dir=run_dir,
            mode=mode,
            config=guard_config,
            checkpoints=guarded,
            batch_text=corpus.tokenizer,
            batch_loss=partial(_batch_loss, config, run, forward, ranks),
            facts={"step": first_step, "dtype": config.dtype, "seed": config.seed},
            state={"scaler": run.scaler if run.scaler.is_enabled() else None},
        ) as guard:
            steps = guard.steps(
                run.loader,
                accumulate=config.accumulate,
                data_position=first_step * config.accumulate,
            )
            for micro_batches in steps if first_step < config.steps else ():
                step = micro_batches.number
                run.clock.begin(step, micro_batches.data_position)
                if intervention is not None and intervention.planned and step == intervention.onset:
                    guard.event("planned change", what=intervention.title)
                if step % config.eval_steps == 0:
                    found = evaluator.evaluate(forward)
                    guard.event("evaluation", loss=found.loss, seconds=found.seconds)
                    guard.record(eval_loss=found.loss)

                peaks: dict[str, Tensor] = {}
                for count, batch in enumerate(micro_batches, start=1):
                    set_gradient_sync(forward, enabled=count == config.accumulate)
                    batch = batch.to(ranks.device)
                    with config.dtype.autocast(ranks.device):
                        output = forward(batch.tokens, batch.targets)
                    measured = output.signals
                    guard.record(
                        loss=output.cross_entropy,
                        tokens=batch.numel(),
                        token_loss=None if measured is None else measured.token_losses,
                        batch=batch,
                    )
                    peaks = _running_max(peaks, measured)
                    # Micro-batches have equal token counts, so the mean of their means is exact.
                    run.scaler.scale(output.loss / config.accumulate).backward()
                guard.record(**peaks)  # once per step: of several values the first would be kept

                run.scaler.unscale_(run.optimizer)  # clip by the norm of the unscaled gradient
                if config.clip is None:
                    guard.record(grad_norm=_gradient_norm(run.model))
                else:
                    guard.clip_grad_norm_(config.clip)
                run.scaler.step(run.optimizer)
                run.scaler.update()
                run.scheduler.step()
                run.optimizer.zero_grad()

                done = step + 1
                is_last = done == config.steps
                is_due = is_last or done % config.checkpoint_steps == 0
                if is_due and not (is_last and guarded is not None):
                    checkpoints.save(run_dir / "checkpoints", done, run, ranks)
                    guard.event("checkpoint", steps=done)
                if on_step is not None:
                    on_step(done, output.cross_entropy.detach())
                if done == config.steps:
                    break  # before a further batch is fetched

            found = evaluator.evaluate(forward)
            guard.event("evaluation", loss=found.loss, seconds=found.seconds)
            guard.close("all steps done")
        return TrainOutcome(first_step=first_step, eval_loss=found.loss)


class _Stopped(Exception):
    """The run was stopped in order to be resumed."""


def train_in_parts(
    config: TrainConfig,
    run_dir: Path,
    *,
    stop: int | None,
    on_step: OnTrainStep | None = None,
    **options: Any,
) -> TrainOutcome:
    """Train a run that is stopped after a step and resumed, or not at all if `stop` is None.

    The options are those of `train`.
    """

    def after_step(done: int, loss: Tensor) -> None:
        if on_step is not None:
            on_step(done, loss)
        if done == stop:
            raise _Stopped

    # Not in an `except` block: the exception would keep the stopped run in memory.
    with contextlib.suppress(_Stopped):
        return train(config, run_dir, on_step=after_step, **options)
    return train(config, run_dir, resume=True, on_step=after_step, **options)


def _batch_loss(
    config: TrainConfig, run: checkpoints.LabRun, forward: Forward, ranks: LabRanks, batch: Batch
) -> Tensor:
    batch = batch.to(ranks.device)
    with run.clock.at_batch(batch.position), config.dtype.autocast(ranks.device):
        return forward(batch.tokens, batch.targets).cross_entropy


def build_run(
    config: TrainConfig, corpus: TokenCorpus, ranks: LabRanks
) -> tuple[checkpoints.LabRun, Forward]:
    """Build the parts of a run before its first step, and the callable for its forward pass."""
    windows = DataConfig(batch_size=config.micro_batch_size, length=config.length, seed=config.seed)
    data = WindowDataset(corpus, windows, rank=ranks.rank, world_size=ranks.size)
    model, forward = build_model(config.model, ranks, config.seed)
    model.measure = config.measure
    optimizer = make_optimizer(model, config.optimizer)
    run = checkpoints.LabRun(
        model=model,
        optimizer=optimizer,
        scheduler=make_schedule(optimizer, warmup=config.warmup, steps=config.steps),
        # Small gradients underflow in fp16, so the loss is scaled up. With other dtypes the scaler
        # is disabled and its calls in the loop do nothing.
        scaler=torch.amp.GradScaler(ranks.device.type, enabled=config.dtype is Dtype.FP16),
        loader=Loader(data, pin_memory=ranks.device.type == "cuda"),
        identity=config.identity(),
        clock=RunClock(config.accumulate),
    )
    return run, forward


def _corpus(
    config: TrainConfig, ranks: LabRanks, cache_dir: Path | None, on_text: Progress | None
) -> TokenCorpus:
    """Return the token files; rank 0 builds them, the other ranks load them from the cache."""
    wanted = CorpusConfig(vocab_size=config.model.vocab_size, max_bytes=config.corpus_bytes)
    if ranks.rank == 0:
        prepare_corpus(wanted, cache_dir=cache_dir, progress=on_text)
    ranks.barrier()
    return prepare_corpus(wanted, cache_dir=cache_dir)


def _gradient_norm(model: Gpt) -> Tensor:
    """Return the norm that clipping would have returned."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def _running_max(peaks: Mapping[str, Tensor], signals: Signals | None) -> dict[str, Tensor]:
    """Update the largest values with those of one more micro-batch; empty if not measured."""
    if signals is None:
        return {}
    seen = {
        "max_attention_logit": signals.max_attention_logit.amax(),
        "max_log_z": signals.max_log_z,
        "max_token_loss": signals.token_losses.amax(),
    }
    return {name: torch.maximum(peaks.get(name, value), value) for name, value in seen.items()}
