"""Trimtab in the Lightning Trainer: docs/trainers.md.

    trainer = L.Trainer(callbacks=[TrimtabCallback("runs/x1", mode="protect")])
    trainer.fit(model, loader, ckpt_path=last_good_checkpoint("runs/x1"))

Where the guard learns what:

    on_train_start             makes the guard
    strategy.batch_to_device   each batch while it is on the host: data positions and fingerprints
    on_train_batch_start       tokens of the batch
    on_before_backward         the loss, as `training_step` returned it
    the precision plugin       the norm before clipping
    optimizer.step(closure)    forward, backward and clipping run inside; the guard's hooks follow
    on_validation_end          evaluation loss
    trainer.save_checkpoint    what the guard knows is saved too, and the checkpoint gets a verdict
    on_train_end, ...          all of it is restored
"""

import copy
import os
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from trimtab.core.config import Mode
from trimtab.core.errors import MissingExtra

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.loops.fetchers import _DataLoaderIterDataFetcher
    from lightning.pytorch.plugins.io import AsyncCheckpointIO
    from lightning.pytorch.plugins.precision import Precision
    from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature
except ModuleNotFoundError as error:
    message = "trimtab.integrations.lightning needs lightning"
    raise MissingExtra.of(message, "lightning") from error

from trimtab.integrations.trainer_adapter import TrainerAdapter
from trimtab.journal import RunDirectory
from trimtab.live.deepspeed.engine import is_engine
from trimtab.live.guard import Guard
from trimtab.live.shield import log
from trimtab.state.checkpoints.run_checkpoints import Checkpoints

__all__ = ["TrimtabCallback", "last_good_checkpoint"]

EVALUATION = "val_loss"
"""The name of the evaluation loss in Lightning's own examples."""

LINKS = "lightning"
"""The folder in that of the run where a file is linked to, until it is registered."""


class TrimtabCallback(Callback):  # type: ignore[misc]
    """Watches a Trainer: `L.Trainer(callbacks=[TrimtabCallback("runs/x1", mode="protect")])`."""

    def __init__(
        self,
        run_dir: str | Path | None = None,
        mode: Mode | str = Mode.OBSERVE,
        *,
        tokens: Callable[[Any], Any] | None = None,
        batch_loss: Callable[[Any], torch.Tensor] | None = None,
        **options: Any,
    ) -> None:
        """Keep what the user wants; nothing is touched before training starts.

        Args:
            run_dir: The folder of the run; the logger's, or `default_root_dir`, if it is not given.
            mode: "observe", "protect" or "recover", as for `trimtab.watch`.
            tokens: How many tokens the loss of a batch is the mean of, as a number or a tensor.
                Without it every batch of a step weighs the same.
            batch_loss: For "recover": computes the loss of a batch on the device; `training_step`
                without its `self.log` if it is not given.
            options: Other arguments of `trimtab.watch`, such as `config` and `on_incident`.
        """
        self._run_dir = run_dir
        self._adapter = TrainerAdapter(run_dir, mode, **options)
        self._count_tokens = tokens
        self._batch_loss = batch_loss
        self._tokens: Any = None
        self._batch: Any = None
        """The batch of this micro-step as the loader gave it, until its loss is recorded."""
        self._scaler: Any = None
        self._fetch_began = self._waited = 0.0
        self._clip: ClipRecorder | None = None
        self._saved: dict[str, Any] = {}
        """What a checkpoint has of the guard: there is no guard yet when it is loaded."""

    @property
    def guard(self) -> Guard | None:
        """Return the guard while the Trainer trains, else None."""
        return self._adapter.guard

    # The life of a guard.

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Make the guard: model, optimizers and what a checkpoint holds are in place."""
        self._end("training began again")
        if not _can_be_watched(trainer):
            return
        adapter = self._adapter
        run_dir = self._run_dir or trainer.log_dir or trainer.default_root_dir
        self._scaler = getattr(trainer.precision_plugin, "scaler", None)
        checkpoints = Checkpoints(run_dir=run_dir)
        guard = adapter.start(
            trainer.strategy.model or pl_module,
            trainer.optimizers,
            run_dir=run_dir,
            step=trainer.global_step,
            facts={"dtype": _dtype(trainer.precision), "seed": _seed()},
            state={"scaler": self._scaler, **_averages(trainer)},
            batch_loss=self._find_batch_loss(trainer, pl_module),
            checkpoints=checkpoints,
        )
        if guard is None:
            return
        with adapter.shield.guarding("on_train_start"):
            if trainer.ckpt_path is None and trainer.global_step > 0:
                # `fit` was called again: the weights go on, Lightning makes new optimizers.
                guard.skip_resume_audit()
                guard.event("planned change", what="fit was called again")
            elif self._saved:
                guard.load_state_dict(self._saved)
            if not is_engine(trainer.strategy.model):  # else it clips by itself
                self._clip = ClipRecorder(adapter, trainer, pl_module)
            CheckpointRegister(adapter, trainer, checkpoints, Path(run_dir))
            if pl_module.automatic_optimization:  # else it is not known where a step ends
                note = partial(self._note_batch, trainer)
                adapter.replace(trainer.strategy, "batch_to_device", note)
                loop = trainer.fit_loop.epoch_loop
                adapter.replace(loop, "_on_before_fetch", self._before_fetch)
                adapter.replace(loop, "_on_after_fetch", self._after_fetch)
        self.on_train_epoch_start(trainer, pl_module)  # not called in the epoch of a resume

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin the data of an epoch."""
        if pl_module.automatic_optimization:
            loop = trainer.fit_loop
            position = loop.epoch_loop.batch_progress.total.ready
            self._adapter.begin_data(loop._combined_loader, position)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore everything."""
        self._end("end of training")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Restore everything after a failure."""
        self._end(f"raised {type(exception).__name__}")

    def _end(self, how: str) -> None:
        self._clip = None
        self._adapter.end(how)

    # What is recorded.

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count the tokens of a batch."""
        self._tokens = None
        if self._count_tokens is not None:
            try:
                self._tokens = self._count_tokens(batch)
            except Exception:  # the user's function; without it there are still losses
                self._count_tokens = None
                log.exception("trimtab: tokens(batch) failed; batches weigh the same from now on")

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor
    ) -> None:
        """Record the loss: Lightning has divided it by the accumulation, and multiplied it by the
        loss scale of fp16."""
        guard, shield = self.guard, self._adapter.shield
        if guard is None or shield.is_down or is_engine(trainer.strategy.model):
            return  # an engine's losses are heard from itself
        with shield.guarding("loss"):
            value = loss
            if pl_module.automatic_optimization and trainer.accumulate_grad_batches > 1:
                value = value * trainer.accumulate_grad_batches
            scale = getattr(self._scaler, "_scale", None)
            if scale is not None and self._scaler.is_enabled():
                value = value / scale
            guard.record(loss=value, tokens=self._tokens, batch=self._batch)
            self._batch = None

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Measure the norm where clipping does not show it."""
        if self._clip is not None and not self._adapter.shield.is_down:
            with self._adapter.shield.guarding("gradient norm"):
                self._clip.before_clipping(optimizer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the loss of an evaluation."""
        if self.guard is None or trainer.sanity_checking:
            return
        self.guard.event("evaluation")
        loss = trainer.callback_metrics.get(EVALUATION)
        if loss is not None:
            self.guard.record(eval_loss=loss)

    def _note_batch(
        self, trainer: Trainer, original: Any, batch: Any, *rest: Any, **options: Any
    ) -> Any:
        """Replace `batch_to_device`, which is called for batches of evaluations too."""
        if trainer.training:
            done = trainer.fit_loop.epoch_loop.batch_progress.current.ready
            is_first = done % trainer.accumulate_grad_batches == 0
            seconds, self._waited = self._waited, 0.0
            self._adapter.note_batch(batch, begins_step=is_first, seconds=seconds)
            self._batch = batch
        return original(batch, *rest, **options)

    def _before_fetch(self, original: Any) -> None:
        original()
        self._fetch_began = time.perf_counter()

    def _after_fetch(self, original: Any) -> None:
        self._waited += time.perf_counter() - self._fetch_began
        original()

    def _find_batch_loss(
        self, trainer: Trainer, module: LightningModule
    ) -> Callable[[Any], torch.Tensor] | None:
        """Return what computes the loss of a batch as `_note_batch` was given it."""
        given = self._batch_loss
        to_device = trainer.strategy.batch_to_device  # not what will replace it
        if given is None and not _returns_loss(trainer, module):
            return None

        def loss_of(batch: Any) -> torch.Tensor:
            batch = to_device(batch)
            if given is None:
                return _training_loss(trainer, module, batch)
            with trainer.precision_plugin.forward_context():
                return given(batch)

        return loss_of

    # What is saved.

    def state_dict(self) -> dict[str, Any]:
        """Return what the guard has learnt; Lightning saves it in every checkpoint."""
        state = self._saved
        if self.guard is not None:
            with self._adapter.shield.guarding("state_dict"):
                # Lightning does not save random numbers.
                state = self.guard.state_dict(with_random_state=False)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep it until training starts."""
        self._saved = state_dict


def _can_be_watched(trainer: Trainer) -> bool:
    if is_engine(trainer.strategy.model):
        return True  # of DeepSpeed, which keeps its parameters in optimizers of its own
    if not any(group["params"] for o in trainer.optimizers for group in o.param_groups):
        log.warning("trimtab: there is no optimizer with parameters, so this run is not watched")
        return False
    if trainer._detect_anomaly:
        log.warning(
            "trimtab: detect_anomaly=True raises in the backward pass of a step that is not "
            "finite, before it can be discarded"
        )
    return True


def _averages(trainer: Trainer) -> dict[str, nn.Module]:
    """Return the averages of the weights that callbacks keep: an undo restores them as well."""
    return {
        f"{place} {type(callback).__name__}.{name}": value
        for place, callback in enumerate(trainer.callbacks)
        for name, value in vars(callback).items()
        if isinstance(value, nn.Module) and value is not trainer.lightning_module
    }


def _returns_loss(trainer: Trainer, module: LightningModule) -> bool:
    """Return whether `training_step` is a function of a batch that only computes its loss."""
    reads_data = isinstance(trainer.fit_loop._data_fetcher, _DataLoaderIterDataFetcher)
    return module.automatic_optimization and not reads_data


def _training_loss(trainer: Trainer, module: LightningModule, batch: Any) -> torch.Tensor:
    arguments = {"batch": batch}
    if is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2):
        arguments["batch_idx"] = 0
    with _without_trace(module):
        found = trainer.strategy.training_step(*arguments.values())
    loss = found["loss"] if isinstance(found, Mapping) else found
    if not isinstance(loss, torch.Tensor):
        raise TypeError(f"training_step returned no loss but {type(loss).__name__}")
    return loss


@contextmanager
def _without_trace(module: LightningModule) -> Iterator[None]:
    """Let `self.log` do nothing, and restore what `training_step` writes to attributes.

    Modules collect outputs in lists and count in numbers; torchmetrics adds to tensors. All of
    them work on copies meanwhile.
    """
    found = [(vars(part), dict(vars(part))) for part in module.modules()]
    for attributes, saved in found:
        attributes |= {name: _copy(value) for name, value in saved.items() if name not in _OF_TORCH}
    vars(module).update(log=_log_nothing, log_dict=_log_nothing)
    try:
        yield
    finally:
        for attributes, saved in found:
            attributes.clear()
            attributes |= saved


_OF_TORCH = frozenset(vars(nn.Module()))
"""Attributes of every module: parameters, buffers, hooks. They are not copied."""


def _log_nothing(*unused: Any, **more: Any) -> None: ...


def _copy(value: Any) -> Any:
    """Copy a tensor or a container, and containers in a dict; return others as they are."""
    if type(value) is torch.Tensor:
        return value.clone()
    if type(value) is dict:
        return {key: _copy(part) for key, part in value.items()}
    return copy.copy(value) if type(value) in (list, set, deque, defaultdict) else value


def _dtype(precision: Any) -> str | None:
    """Return "bf16" for Lightning's "bf16-mixed"; None for a name that is not known."""
    name = str(precision)
    if name.startswith("transformer-engine"):
        return "fp8"
    return {"16": "fp16", "bf16": "bf16", "32": "fp32"}.get(name.partition("-")[0])


def _seed() -> int | None:
    """Return what `seed_everything` was called with."""
    seed = os.environ.get("PL_GLOBAL_SEED", "")
    return int(seed) if seed.isdecimal() else None


class ClipRecorder:
    """Records the norm from before clipping, wherever that happens.

    Lightning clips in its precision plugin and drops the norm. Where it clips by norm, the same
    call is made in its place and the norm is kept. Where a module clips by itself, or by value, the
    norm is measured before it.
    """

    def __init__(self, adapter: TrainerAdapter, trainer: Trainer, module: LightningModule) -> None:
        self._adapter = adapter
        self._plugin = trainer.precision_plugin
        self._measures = False
        """Whether the norm must be measured."""
        is_whole = not isinstance(trainer.strategy.model, FullyShardedDataParallel)
        usual = LightningModule.configure_gradient_clipping
        clips_itself = type(module).configure_gradient_clipping is not usual
        clips = clips_itself or (trainer.gradient_clip_val or 0) > 0
        if not module.automatic_optimization or not clips or not is_whole:
            return
        by_value = trainer.gradient_clip_algorithm == "value"
        is_usual = type(self._plugin).clip_grad_by_norm is Precision.clip_grad_by_norm
        if is_usual and not by_value:
            adapter.replace(self._plugin, "clip_grad_by_norm", self._clip)
        # A fused optimizer of the user unscales in its update: its gradients are not ready yet.
        unscales = getattr(self._plugin, "scaler", None) is not None and any(
            getattr(optimizer, "_step_supports_amp_scaling", False)
            for optimizer in trainer.optimizers
        )
        self._measures = not unscales and (clips_itself or by_value or not is_usual)

    def before_clipping(self, optimizer: Any) -> None:
        """Measure the norm: the gradients are ready, and not clipped yet."""
        if self._measures and self._adapter.guard is not None:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            gradients = [p.grad for p in parameters if p.grad is not None]
            if gradients:
                self._adapter.guard.record(grad_norm=torch.nn.utils.get_total_norm(gradients))

    def _clip(self, original: object, optimizer: Any, clip_val: float) -> None:
        """Clip as `Precision.clip_grad_by_norm` does, and keep the norm."""
        norm = torch.nn.utils.clip_grad_norm_(self._plugin.main_params(optimizer), clip_val)
        if self._adapter.guard is not None:
            self._adapter.guard.record(grad_norm=norm)


def last_good_checkpoint(run_dir: str | Path) -> str | None:
    """Return the newest checkpoint of a run that is not bad; None if the run has none.

    For `trainer.fit(model, loader, ckpt_path=last_good_checkpoint("runs/x1"))`. With several ranks
    call it on all of them.
    """
    folder = Checkpoints(run_dir=run_dir).find()
    if folder is None:
        return None
    files = sorted(folder.glob("*.ckpt"))
    return str(files[0] if files else folder)


class CheckpointRegister:
    """Registers every checkpoint that the Trainer saves, so that it gets a verdict."""

    def __init__(
        self, adapter: TrainerAdapter, trainer: Trainer, checkpoints: Checkpoints, run_dir: Path
    ) -> None:
        self._adapter = adapter
        self._trainer = trainer
        self._checkpoints = checkpoints
        self._links = RunDirectory(run_dir.absolute()).folder(LINKS)
        if isinstance(trainer.strategy.checkpoint_io, AsyncCheckpointIO):
            log.warning(
                "trimtab: AsyncCheckpointIO does not say when a file is complete, so checkpoints "
                "get no verdicts"
            )
        else:
            adapter.replace(trainer, "save_checkpoint", self._save)

    def _save(
        self, original: Any, filepath: Any, weights_only: Any = None, storage_options: Any = None
    ) -> None:
        """Save as the Trainer does, and register what was saved; on all ranks."""
        guard = self._adapter.guard
        if guard is not None:
            guard.event("checkpoint")  # the time that it takes is no stall
        original(filepath, weights_only, storage_options)
        path = Path(filepath)
        # Weights alone are nothing to resume from.
        if guard is not None and not weights_only and not self._adapter.shield.is_down:
            with self._adapter.shield.guarding("checkpoint"):
                self._register(path)

    def _register(self, path: Path) -> None:
        step = self._trainer.global_step
        if path.is_dir():
            self._checkpoints.add(path, step=step)
            return
        folder = self._links / f"step-{step:08}"
        problem = ""
        if self._trainer.is_global_zero:
            try:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                (folder / path.name).hardlink_to(path)
            except OSError as error:
                problem = str(error)
        problem = self._trainer.strategy.broadcast(problem)
        if problem:
            log.warning("trimtab: %s cannot be linked, so it gets no verdict: %s", path, problem)
        else:
            self._checkpoints.add(folder, step=step)
        if self._trainer.is_global_zero:
            shutil.rmtree(folder, ignore_errors=True)
