"""Trimtab in the Hugging Face Trainer and in TRL: docs/trainers.md.

    trainer = Trainer(..., callbacks=[TrimtabCallback(mode="protect")])
    trainer.train(resume_from_checkpoint=last_good_checkpoint(args.output_dir))

What the callback does, and what it replaces on this one Trainer:

    on_train_begin      finds the Trainer and makes the guard
    get_batch_samples   the batches of a step: data positions and fingerprints
    training_step       loss and tokens of each micro-batch; not with DeepSpeed, whose engine is
                        watched instead
    _get_grad_norm      the norm before the Trainer's own clipping; the same
    _save_checkpoint    what the guard knows is saved too, and the checkpoint gets a verdict
    on_train_end        all of it is restored
"""

import copy
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from trimtab.core.config import Mode
from trimtab.core.errors import ConfigError, MissingExtra, TrimtabError
from trimtab.core.findings import Symptom
from trimtab.core.signals import OF_REINFORCEMENT, REWARD

try:
    from transformers import Trainer, TrainerCallback
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
except ModuleNotFoundError as error:
    raise MissingExtra.of("trimtab.integrations.hf needs transformers", "hf") from error

from trimtab.integrations.trainer_adapter import (
    TrainerAdapter,
    caller_variables,
    find_caller,
    load_guard_file,
    write_guard_file,
)
from trimtab.live.deepspeed.engine import is_engine
from trimtab.live.guard import Guard
from trimtab.live.measure.batch_facts import ROW_IDS
from trimtab.live.measure.token_losses import IGNORED
from trimtab.live.shield import log
from trimtab.readers.aliases import alias_table
from trimtab.state.checkpoints.run_checkpoints import Checkpoints

__all__ = ["TrimtabCallback", "last_good_checkpoint"]


class TrimtabCallback(TrainerCallback):  # type: ignore[misc]
    """Watches a Trainer: `Trainer(..., callbacks=[TrimtabCallback(mode="protect")])`."""

    def __init__(
        self, run_dir: str | Path | None = None, mode: Mode | str = Mode.OBSERVE, **options: Any
    ) -> None:
        """Keep what the user wants; nothing is touched before training begins.

        Args:
            run_dir: The folder of the run; the Trainer's `output_dir` if it is not given.
            mode: "observe", "protect" or "recover", as for `trimtab.watch`.
            options: Other arguments of `trimtab.watch`, such as `config` and `on_incident`.
        """
        self._run_dir = run_dir
        self._adapter = TrainerAdapter(run_dir, mode, **options)
        self._trainer: Any = None
        self._checkpoints: Checkpoints | None = None
        self._position: int | None = None
        """The position of the first batch, until an epoch begins, if no checkpoint has it."""
        self._first_step = 0
        self._has_reported_filter = False

    @property
    def guard(self) -> Guard | None:
        """Return the guard while the Trainer trains, else None."""
        return self._adapter.guard

    def on_train_begin(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Make the guard, and replace the methods that it learns from."""
        self._trainer = find_caller(Trainer)
        if self._trainer is None:
            raise ConfigError("TrimtabCallback was not called by a transformers Trainer")
        try:
            self._start(args, state)
        except TrimtabError:  # the user can fix it, and nothing has been trained yet
            raise
        except Exception:
            log.exception("trimtab could not start and steps aside; training continues")
            self._adapter.end("could not start")

    def _start(self, args: Any, state: Any) -> None:
        trainer = self._trainer
        run_dir = self._run_dir or args.output_dir
        self._first_step = state.global_step + 1  # as the Trainer's log and checkpoints count
        self._checkpoints = Checkpoints(run_dir=run_dir)
        precision = trainer.accelerator.mixed_precision
        guard = self._adapter.start(
            trainer.model_wrapped,
            trainer.optimizer,
            run_dir=run_dir,
            step=self._first_step,
            facts={"seed": args.seed, "dtype": None if precision == "no" else precision},
            state={"scaler": trainer.accelerator.scaler},
            batch_loss=None if _makes_its_batches(trainer) else self._batch_loss,
            checkpoints=self._checkpoints,
        )
        if guard is None:
            return
        self._position = state.global_step * args.gradient_accumulation_steps
        with self._adapter.shield.guarding("resume"):
            if load_guard_file(Path(_resumed_folder(trainer) or ""), guard):
                self._position = None
        replace = self._adapter.replace
        replace(trainer, "get_batch_samples", self._get_batch_samples)
        replace(trainer, "_save_checkpoint", self._save_checkpoint)
        if is_engine(trainer.model_wrapped):
            return  # it steps within its backward pass; the guard hears loss and norm from it
        replace(trainer, "training_step", self._training_step)
        if hasattr(trainer, "_get_grad_norm"):
            replace(trainer, "_get_grad_norm", self._adapter.clip)
        else:
            replace(trainer.accelerator, "clip_grad_norm_", self._adapter.clip)

    def on_epoch_begin(
        self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **unused: Any
    ) -> None:
        """Begin the data of an epoch."""
        position, self._position = self._position, None
        self._adapter.begin_data(train_dataloader, position)

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **unused: Any
    ) -> None:
        """Record the loss of an evaluation."""
        if self.guard is not None:
            loss = (metrics or {}).get("eval_loss")
            self.guard.event("evaluation", **({} if loss is None else {"loss": loss}))
            self.guard.record(eval_loss=loss)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **unused: Any) -> None:
        """Record what TRL logs of a policy; report once if the log hides a loss."""
        self._report_filter(args, self.guard)
        if self.guard is not None:
            with self._adapter.shield.guarding("metrics"):
                if found := policy_metrics(logs or {}):
                    self.guard.record(**found)

    def on_train_end(self, args: Any, state: Any, control: Any, **unused: Any) -> None:
        """Restore everything."""
        guard = self.guard
        self._adapter.end("end of training")
        self._report_filter(args, guard)  # the observer has now judged the last steps too

    # What is called in place of the Trainer's methods.

    def _get_batch_samples(self, original: Any, *arguments: Any, **options: Any) -> Any:
        guard, adapter = self.guard, self._adapter
        if guard is not None:
            guard.note_random_state()  # a sampler draws from the generators at its first batch
        began = time.perf_counter()
        samples = original(*arguments, **options)
        seconds = time.perf_counter() - began
        for place, batch in enumerate(samples[0]):
            is_first = place == 0
            adapter.note_batch(batch, begins_step=is_first, seconds=seconds if is_first else 0.0)
        return samples

    def _training_step(
        self, original: Any, model: Any, inputs: Any, *rest: Any, **options: Any
    ) -> Any:
        guard, shield = self.guard, self._adapter.shield
        tokens, row_ids = None, None
        if guard is not None and isinstance(inputs, MutableMapping):
            row_ids = inputs.pop(ROW_IDS, None)  # a collator adds them; no model takes them
        if guard is not None and not shield.is_down:
            with shield.guarding("tokens"):
                tokens = _count_tokens(self._trainer, inputs)  # before labels are removed from them
            guard.note_random_state()
        divided = original(model, inputs, *rest, **options)
        if guard is not None and not shield.is_down:
            with shield.guarding("loss"):
                num_items = options.get("num_items_in_batch", rest[0] if rest else None)
                loss = undivided_loss(self._trainer, divided, tokens, num_items)
                guard.record(loss=loss, tokens=tokens, batch=inputs, row_ids=row_ids)
        return divided

    def _save_checkpoint(self, original: Any, *arguments: Any, **options: Any) -> Any:
        guard, shield, args = self.guard, self._adapter.shield, self._trainer.args
        saved: dict[str, Any] = {}
        if guard is not None:
            guard.event("checkpoint")
            saved = guard.state_dict()
        result = original(*arguments, **options)
        step = self._trainer.state.global_step
        folder = Path(args.output_dir) / f"checkpoint-{step}"
        is_whole = folder.is_dir() and not args.save_only_model
        if guard is not None and self._checkpoints is not None and is_whole:
            with shield.guarding("checkpoint"):
                if args.should_save:
                    write_guard_file(folder, saved)
                self._checkpoints.add(folder, step=step + 1)  # the number of the next step
        return result

    def _batch_loss(self, inputs: Any) -> Any:
        """Return the loss of a batch as `get_batch_samples` gave it."""
        trainer = self._trainer
        with unchanged_metrics(trainer), trainer.compute_loss_context_manager():
            return trainer.compute_loss(trainer.model_wrapped, trainer._prepare_inputs(inputs))

    def _report_filter(self, args: Any, guard: Any) -> None:
        if self._has_reported_filter or guard is None or not args.logging_nan_inf_filter:
            return
        with self._adapter.shield.guarding("log"):
            found = [finding for incident in guard.incidents for finding in incident.findings]
            steps = [f.step for f in found if f.symptom is Symptom.NONFINITE_LOSS]
            now = [step for step in steps if step >= self._first_step]  # not of an earlier launch
            if now:
                self._has_reported_filter = True
                log.warning(
                    "trimtab: step %d: the loss is not finite; the Trainer's log hides it "
                    "(logging_nan_inf_filter), the journal has it",
                    now[0],
                )


def policy_metrics(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the signals of reinforcement learning that a log line has, by our names."""
    table, found = alias_table(), dict[str, Any]()
    for name, value in logs.items():
        signal = table.claim(name).alias.signal
        is_policy = signal in OF_REINFORCEMENT or signal.startswith(f"{REWARD}/")
        if is_policy and isinstance(value, (int, float)):
            found.setdefault(signal, float(value))
    return found


def _makes_its_batches(trainer: Any) -> bool:
    """Return whether batches are made of those of the loader, as GRPO generates completions."""
    return type(trainer)._prepare_inputs is not Trainer._prepare_inputs


@contextmanager
def unchanged_metrics(trainer: Any) -> Iterator[None]:
    """Restore what TRL's `compute_loss` adds to its log line and its count of tokens."""
    metrics, tokens = trainer.__dict__.get("_metrics"), getattr(trainer, "_total_train_tokens", 0)
    if metrics is None:
        yield
        return
    trainer._metrics = copy.deepcopy(metrics)
    try:
        yield
    finally:
        trainer._metrics, trainer._total_train_tokens = metrics, tokens


def last_good_checkpoint(run_dir: str | Path) -> str | None:
    """Return the newest checkpoint of a run that is not bad; None if the run has none.

    For `trainer.train(resume_from_checkpoint=last_good_checkpoint(output_dir))`. With several ranks
    call it on all of them.
    """
    found = Checkpoints(run_dir=run_dir).find()
    return None if found is None else str(found)


def _resumed_folder(trainer: Any) -> str | None:
    """Return the checkpoint that the Trainer resumes from; only its training loop knows it."""
    for variables in caller_variables():
        found = variables.get("resume_from_checkpoint")
        if isinstance(found, str) and variables.get("self") is trainer:
            return found
    return None


def _count_tokens(trainer: Any, inputs: Any) -> torch.Tensor | None:
    """Return how many tokens the loss is the mean of, on the device; None without labels."""
    if not isinstance(inputs, Mapping) and not hasattr(inputs, "get"):
        return None
    labels = inputs.get("shift_labels")
    if labels is None:
        labels = inputs.get("labels")
        if isinstance(labels, torch.Tensor) and labels.dim() > 1 and _shifts_labels(trainer):
            labels = labels[..., 1:]  # the first token has nothing to be predicted from
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return None
    return labels.ne(IGNORED).sum()


def undivided_loss(
    trainer: Any, divided: torch.Tensor, tokens: torch.Tensor | None, num_items: Any
) -> torch.Tensor:
    """Return the mean loss over the tokens of a micro-batch.

    `training_step` returns it divided: by the tokens of the whole step on all ranks, or by the
    number of micro-batches.
    """
    if not _is_scaled(trainer, num_items):
        # Versions before 4.49 have no count of their own for the short step at the end of an epoch.
        steps = getattr(trainer, "current_gradient_accumulation_steps", None)
        return divided * int(steps or trainer.args.gradient_accumulation_steps)
    if num_items is None or tokens is None:
        return divided
    total = torch.as_tensor(num_items).flatten()[0].to(divided.device)
    return divided * total / (_num_copies(trainer) * tokens.clamp(min=1))


def _is_scaled(trainer: Any, num_items: Any) -> bool:
    """Return whether the loss was divided by the tokens of the step, as `training_step` decides."""
    said = getattr(trainer, "loss_is_scaled_for_ga", None)
    if said is not None:
        return bool(said)
    if not hasattr(trainer, "current_gradient_accumulation_steps"):  # before 4.49
        return num_items is not None
    by_model = trainer.model_accepts_loss_kwargs and num_items is not None
    return bool(by_model or trainer.compute_loss_func is not None)


def _num_copies(trainer: Any) -> int:
    """Return how many ranks the token count of the step covers: the loss was multiplied by it."""
    args = trainer.args
    if not args.average_tokens_across_devices:
        return 1
    if args.n_gpu > 1:
        return int(args.n_gpu)
    tensor_parallel = trainer.get_tp_size() if hasattr(trainer, "get_tp_size") else 1
    return int(trainer.accelerator.num_processes) // int(tensor_parallel)


def _shifts_labels(trainer: Any) -> bool:
    """Return whether labels equal the inputs, so that token t is predicted from those before."""
    if getattr(trainer, "_loss_shifts_labels", False):
        return True
    model = trainer.accelerator.unwrap_model(trainer.model)
    inner = getattr(getattr(model, "base_model", None), "model", None)  # in a PEFT model
    names = {kind.__name__ for part in (model, inner) for kind in type(part).__mro__}
    is_causal = bool(names & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()))
    return is_causal and not getattr(model.config, "is_encoder_decoder", False)
