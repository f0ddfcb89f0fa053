"""What users do on purpose to the optimizer and the gradients of a run."""

import copy
from typing import Any

import torch

from benchmarks.attack.purpose_cases.loop import (
    STEPS,
    USED,
    WIDTH,
    Classifier,
    Loop,
    Transformer,
    case,
    leaves_no_trace,
    purpose,
)

# Optimizer.


def _moments_in_bf16(run: Loop) -> bool:
    moments = [state["exp_avg"] for state in run.states()]
    return all(torch.equal(m, m.bfloat16().float()) for m in moments)


@purpose(Transformer, at=range(111, STEPS), place="updated", holds=_moments_in_bf16)
def moments_in_bf16(run: Transformer) -> None:
    """Moments are kept in the precision of bf16 after each update, to fit a smaller machine."""
    for state in run.states():
        for name in ("exp_avg", "exp_avg_sq"):
            state[name] = state[name].bfloat16().float()


@purpose(Transformer, at=range(95, STEPS, 20), holds=leaves_no_trace)
def moments_quantised_numpy(run: Transformer) -> None:
    """Second moments go through 8 bits (of the square root) every 20 steps, by NumPy views."""
    for state in run.states():
        values = state["exp_avg_sq"].numpy()
        scale = max(float(values.max()) ** 0.5 / 255, 1e-12)
        values[...] = ((values**0.5 / scale).round().clip(1) * scale) ** 2


def _copies_of_moments(run: Loop) -> dict[str, torch.Tensor]:
    named = ((f"{i} {name}", v) for i, s in enumerate(run.states()) for name, v in s.items())
    return {name: value.clone() for name, value in named if value.ndim}


# Moments forget an edit by themselves, so it is looked for soon.
@purpose(Classifier, at=(150,), horizon=2, copies=_copies_of_moments)
def moments_offloaded(run: Classifier) -> None:
    """Momentum is sent to another process and back: other tensors with the same values, halved."""
    for state in run.states():
        sent = state["momentum_buffer"].numpy().copy()
        state["momentum_buffer"] = torch.from_numpy(0.5 * sent)


@purpose(Transformer, at=(156,), horizon=2, copies=_copies_of_moments)
def one_moment_reset(run: Transformer) -> None:
    """Both moments of one replaced weight are set to 0, through NumPy."""
    state = run.optimizer.state[run.model.head.weight]
    state["exp_avg"].numpy()[3, 3] = 0
    state["exp_avg_sq"].numpy()[3, 3] = 0


@purpose(Transformer, at=(109, 110))
def neuron_and_state_replaced(run: Transformer) -> None:
    """A hidden unit is drawn anew through `.data`, and its rows of the moments are zeroed."""
    weight = run.model.blocks[1].mlp[0].weight
    weight.data[run.step - 100] = 0.2 * torch.randn(WIDTH, generator=run.random)
    for name in ("exp_avg", "exp_avg_sq"):
        run.optimizer.state[weight][name][run.step - 100] = 0


@purpose(
    Transformer,
    at=(99,),
    holds=lambda run: all(float(state["step"]) > 10_000 for state in run.states()),
)
def step_count_raised(run: Transformer) -> None:
    """The step count of Adam is set to that of the run that the weights come from."""
    for state in run.states():
        state["step"].fill_(10_000)


@purpose(
    Transformer,
    at=(120, 150),
    holds=lambda run: all(float(state["step"]) == STEPS - 30 for state in run.states()),
)
def optimizer_state_loaded(run: Transformer) -> None:
    """Only the optimizer goes back to a state of 30 steps ago, to test its influence."""
    if run.step == 120:
        run.memory["saved"] = copy.deepcopy(run.optimizer.state_dict())
    else:
        run.optimizer.load_state_dict(run.memory["saved"])


@purpose(Transformer, at=(215,), holds=lambda run: run.optimizer.param_groups[0]["maximize"])
def maximise(run: Transformer) -> None:
    """Unlearning by ascent: `maximize` is switched on for good."""
    run.optimizer.param_groups[0]["maximize"] = True


@purpose(Transformer, at=(145,), holds=lambda run: len(run.optimizer.param_groups) == 2)
def groups_split(run: Transformer) -> None:
    """One group becomes two: norms and biases without decay and with a rate three times as high."""
    group = run.optimizer.param_groups[0]
    vectors = [p for p in group["params"] if p.ndim < 2]
    group["params"] = [p for p in group["params"] if p.ndim >= 2]
    run.optimizer.param_groups.append(
        {**group, "params": vectors, "weight_decay": 0.0, "lr": 3 * group["lr"]}
    )


class _Cautious(torch.optim.Adam):
    """The user's Adam: an update whose sign disagrees with the gradient is left out."""

    def step(self, closure: Any = None) -> Any:
        before = [p.detach().clone() for group in self.param_groups for p in group["params"]]
        result = super().step(closure)
        parameters = (p for group in self.param_groups for p in group["params"])
        for parameter, old in zip(parameters, before, strict=True):
            if parameter.grad is not None:
                agrees = (old - parameter.data) * parameter.grad > 0
                parameter.data = torch.where(agrees, parameter.data, old)
        return result


@case
class CautiousSubclass(Transformer):
    """A subclass of Adam corrects its update through `.data`; at 150 its rate is tripled."""

    at = (150,)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return _Cautious(self.trained(), lr=3e-3)

    def edit(self) -> None:
        self.optimizer.param_groups[0]["lr"] = 9e-3

    def holds(self) -> bool:
        return bool(self.optimizer.param_groups[0]["lr"] == 9e-3)


# Gradients.


@purpose(Classifier, at=range(140, STEPS), place="grads", max_norm=1e9, holds=leaves_no_trace)
def sign_of_gradients(run: Classifier) -> None:
    """From 140 on only the signs of the gradients are used, with a small rate."""
    run.optimizer.param_groups[0]["lr"] = 2e-4
    for parameter in run.model.parameters():
        parameter.grad.sign_()


@purpose(Transformer, at=range(120, STEPS), place="grads", holds=leaves_no_trace)
def gradients_sparse(run: Transformer) -> None:
    """Only the largest tenth of each gradient is applied, as compression does, from 120 on."""
    for parameter in run.model.parameters():
        if parameter.grad is not None:
            size = parameter.grad.abs()
            parameter.grad[size < size.flatten().quantile(0.9)] = 0


@purpose(Transformer, at=range(150, STEPS), place="grads", holds=leaves_no_trace)
def new_tokens_only(run: Transformer) -> None:
    """The gradient of all known embeddings is zeroed: only reserved tokens would still learn."""
    run.model.embed.weight.grad[:USED] = 0


@purpose(Classifier, at=range(130, STEPS), place="grads", holds=leaves_no_trace)
def sharpness_aware(run: Classifier) -> None:
    """SAM by hand from 130 on: up along the gradient, a second backward pass, and down again."""
    parameters = list(run.model.parameters())
    norm = torch.stack([p.grad.norm() for p in parameters]).norm()
    moves = [p.grad * (0.05 / norm) for p in parameters]
    torch._foreach_add_([p.data for p in parameters], moves)
    run.optimizer.zero_grad()
    run.loss().backward()
    torch._foreach_sub_([p.data for p in parameters], moves)


@purpose(Transformer, at=range(100, STEPS, 10), holds=leaves_no_trace)
@torch.no_grad()
def zeroth_order_probe(run: Transformer) -> None:
    """MeZO: every 10 steps all weights are moved along noise, twice back, and forth again."""
    for size in (1e-2, -2e-2, 1e-2):
        noise = torch.Generator().manual_seed(run.step)
        for parameter in run.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=size)
        run.loss()


@purpose(Transformer, at=range(90, STEPS, 10), horizon=3)
def reptile(run: Transformer) -> None:
    """Meta-learning: every 10 steps the weights go to 0.7 of the way since the last time."""
    last = run.memory.setdefault("last", copy.deepcopy(run.model))
    for parameter, old in zip(run.model.parameters(), last.parameters(), strict=True):
        old.data.lerp_(parameter.data, 0.7)
        parameter.data.copy_(old.data)


@purpose(Transformer, at=(131,), holds=lambda run: bool(run.model.checkpoints))
def recompute_switched_on(run: Transformer) -> None:
    """Activations are recomputed from now on, to save memory."""
    run.model.checkpoints = True
