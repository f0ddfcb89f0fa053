"""The loss of a micro-batch as the Trainer returns it, and as it is recorded.

The Trainer returns a loss that is divided: by the tokens of the whole step on all ranks, or by the
number of micro-batches. Recorded is the mean over the tokens of this micro-batch.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

IGNORED = -100
"""The label of a token that has no loss; the default of torch's cross entropy."""


def count_tokens(trainer: Any, inputs: Any) -> torch.Tensor | None:
    """The tokens that the loss is the mean of, on the device; None if there are no labels."""
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
    """The mean loss of a micro-batch, from what `training_step` has returned."""
    if not _is_scaled(trainer, num_items):
        # Versions before 4.49 have no count of their own for the short step at the end of an epoch.
        steps = getattr(trainer, "current_gradient_accumulation_steps", None)
        return divided * int(steps or trainer.args.gradient_accumulation_steps)
    if num_items is None or tokens is None:
        return divided
    total = torch.as_tensor(num_items).flatten()[0].to(divided.device)
    return divided * total / (_num_copies(trainer) * tokens.clamp(min=1))


def _is_scaled(trainer: Any, num_items: Any) -> bool:
    """Whether the loss was divided by the tokens of the step, as `training_step` decides it."""
    said = getattr(trainer, "loss_is_scaled_for_ga", None)
    if said is not None:
        return bool(said)
    if not hasattr(trainer, "current_gradient_accumulation_steps"):  # before 4.49
        return num_items is not None
    by_model = trainer.model_accepts_loss_kwargs and num_items is not None
    return bool(by_model or trainer.compute_loss_func is not None)


def _num_copies(trainer: Any) -> int:
    """How many ranks the token count of the step covers: the loss was multiplied by it."""
    args = trainer.args
    if not args.average_tokens_across_devices:
        return 1
    if args.n_gpu > 1:
        return int(args.n_gpu)
    tensor_parallel = trainer.get_tp_size() if hasattr(trainer, "get_tp_size") else 1
    return int(trainer.accelerator.num_processes) // int(tensor_parallel)


def _shifts_labels(trainer: Any) -> bool:
    """Whether token t is predicted from the tokens before it, by labels that equal the inputs."""
    if getattr(trainer, "_loss_shifts_labels", False):
        return True
    model = trainer.accelerator.unwrap_model(trainer.model)
    inner = getattr(getattr(model, "base_model", None), "model", None)  # in a PEFT model
    names = {kind.__name__ for part in (model, inner) for kind in type(part).__mro__}
    is_causal = bool(names & set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()))
    return is_causal and not getattr(model.config, "is_encoder_decoder", False)
