"""The reference trainer: one loop that reads top to bottom, watched by trimtab.

    corpus -> batches ---.
    model -> engine      |
    AdamW, schedule      |-> [ evaluate ] -> forward, backward -> clip -> step -> [ checkpoint ]
    checkpoint, if any --'

Alone or on the ranks of torchrun, in fp32, bf16 or fp16, from the start or from a checkpoint, it is
the same code and, as far as floating point permits, the same numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import trimtab
from trimtab.core.config import Config, Mode
from trimtab.core.errors import ConfigError
from trimtab.lab.corpus.data import DataConfig, WindowDataset, make_loader
from trimtab.lab.corpus.shards import TokenCorpus
from trimtab.lab.corpus.tokens import CorpusConfig, Progress, prepare_corpus
from trimtab.lab.model.gpt import Gpt, Signals
from trimtab.lab.model.optimizer import make_optimizer
from trimtab.lab.trainer import checkpoints
from trimtab.lab.trainer.disturbance import Disturbance, Parts
from trimtab.lab.trainer.engines import Forward, Ranks, build_model, join_ranks, share_gradients
from trimtab.lab.trainer.evaluation import Evaluator
from trimtab.lab.trainer.schedule import make_schedule
from trimtab.lab.trainer.train_config import Dtype, TrainConfig

OnStep = Callable[[int, Tensor], None]
"""Takes how many steps are done, and the last loss as this rank saw it, still on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended."""

    first_step: int
    """Where it began: 0, or behind the checkpoint that it was resumed from."""

    eval_loss: float
    """Loss on held-out text behind the last step."""


def train(
    config: TrainConfig,
    run_dir: Path,
    *,
    resume: bool = False,
    cache_dir: Path | None = None,
    on_text: Progress | None = None,
    on_step: OnStep | None = None,
    mode: Mode = Mode.OBSERVE,
    watching: Config | None = None,
    disturbance: Disturbance | None = None,
) -> Outcome:
    """Train a model from its first step, or from its newest checkpoint, to its last.

    Args:
        config: What to train.
        run_dir: The folder of the run: its journal and its checkpoints.
        resume: Go on from the newest checkpoint; where there is none, begin.
        cache_dir: Where token files are kept; None is the user's cache.
        on_text: Told how far the text is prepared, if it has to be.
        on_step: Told each step.
        mode: Whether trimtab only looks, or keeps bad steps from the weights.
        watching: How trimtab watches the run.
        disturbance: What is done to the run from outside, if anything.
    """
    with join_ranks() as ranks:
        if not resume and (run_dir / "trimtab").exists():
            raise ConfigError(f"{run_dir} holds a run already; resume it, or choose another folder")
        ranks.barrier()  # nobody may write there before everybody has looked

        # Weights and data order have generators of their own; this is for what a reader adds, such
        # as dropout.
        torch.manual_seed(config.seed)
        corpus = _corpus(config, ranks, cache_dir, on_text)
        evaluator = Evaluator(corpus, config, ranks)
        run, forward = _build(config, corpus, ranks)
        newest = checkpoints.latest(run_dir / "checkpoints") if resume else None
        first_step = 0 if newest is None else checkpoints.load(newest, run)
        if disturbance is not None:
            run = disturbance.attach(
                Parts(
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
            config=watching,
            scaler=run.scaler if run.scaler.is_enabled() else None,
            step=first_step,
            dtype=config.dtype,
            seed=config.seed,
        ) as guard:
            steps = guard.steps(
                run.loader,
                accumulate=config.accumulate,
                data_position=first_step * config.accumulate,
            )
            # The range stands first: at its end no further batch is taken.
            for step, micro_batches in zip(range(first_step, config.steps), steps, strict=False):
                if disturbance is not None and disturbance.planned and step == disturbance.onset:
                    guard.event("planned change", what=disturbance.title)
                if step % config.eval_steps == 0:
                    found = evaluator.evaluate(forward)
                    guard.event("evaluation", loss=found.loss, seconds=found.seconds)
                    guard.record(eval_loss=found.loss)

                peaks: dict[str, Tensor] = {}
                for count, batch in enumerate(micro_batches, start=1):
                    share_gradients(forward, now=count == config.accumulate)
                    batch = batch.to(ranks.device)
                    with config.dtype.autocast(ranks.device):
                        output = forward(batch.tokens, batch.targets)
                    guard.record(loss=output.cross_entropy, tokens=batch.numel())
                    peaks = _higher(peaks, output.signals)
                    # Micro-batches have equal numbers of tokens: the mean of their means is theirs.
                    run.scaler.scale(output.loss / config.accumulate).backward()
                guard.record(**peaks)  # once a step: of several values the first would stand

                run.scaler.unscale_(run.optimizer)  # the norm to clip is that of the true gradient
                if config.clip is None:
                    guard.record(grad_norm=_gradient_norm(run.model))
                else:
                    guard.clip_grad_norm_(config.clip)
                run.scaler.step(run.optimizer)
                run.scaler.update()
                run.scheduler.step()
                run.optimizer.zero_grad()

                done = step + 1
                if done % config.checkpoint_steps == 0 or done == config.steps:
                    checkpoints.save(run_dir / "checkpoints", done, run, ranks)
                    guard.event("checkpoint", steps=done)
                if on_step is not None:
                    on_step(done, output.cross_entropy.detach())

            found = evaluator.evaluate(forward)
            guard.event("evaluation", loss=found.loss, seconds=found.seconds)
            guard.close("all steps done")
        return Outcome(first_step=first_step, eval_loss=found.loss)


def _build(
    config: TrainConfig, corpus: TokenCorpus, ranks: Ranks
) -> tuple[checkpoints.Run, Forward]:
    """All parts of a run as they are before its first step, and what to call for the loss."""
    windows = DataConfig(batch_size=config.micro_batch_size, length=config.length, seed=config.seed)
    data = WindowDataset(corpus, windows, rank=ranks.rank, world_size=ranks.size)
    model, forward = build_model(config.model, config.engine, ranks, config.seed)
    model.measure = config.measure
    optimizer = make_optimizer(model, config.optimizer)
    run = checkpoints.Run(
        model=model,
        optimizer=optimizer,
        scheduler=make_schedule(optimizer, config),
        # fp16 has no room for small gradients: the loss is scaled up, and they with it. In the
        # other types the scaler is off, and its lines in the loop do nothing.
        scaler=torch.amp.GradScaler(ranks.device.type, enabled=config.dtype is Dtype.FP16),
        loader=make_loader(data, pin_memory=ranks.device.type == "cuda"),
        identity=config.identity(),
    )
    return run, forward


def _corpus(
    config: TrainConfig, ranks: Ranks, cache_dir: Path | None, on_text: Progress | None
) -> TokenCorpus:
    """The token files; the first rank makes them, the others find them in the cache."""
    wanted = CorpusConfig(vocab_size=config.model.vocab_size, max_bytes=config.corpus_bytes)
    if ranks.rank == 0:
        prepare_corpus(wanted, cache_dir=cache_dir, progress=on_text)
    ranks.barrier()
    return prepare_corpus(wanted, cache_dir=cache_dir)


def _gradient_norm(model: Gpt) -> Tensor:
    """The norm that clipping would have returned."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def _higher(peaks: Mapping[str, Tensor], signals: Signals | None) -> dict[str, Tensor]:
    """The largest values over the micro-batches so far and one more; empty if not measured."""
    if signals is None:
        return {}
    seen = {
        "max_attention_logit": signals.max_attention_logit.amax(),
        "max_log_z": signals.max_log_z,
        "max_token_loss": signals.token_losses.amax(),
    }
    return {name: torch.maximum(peaks.get(name, value), value) for name, value in seen.items()}
