"""What users do on purpose to weights, parts, buffers, the optimizer and gradients of a run."""

import copy
import math
import threading
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from benchmarks.attack.purpose_loops import (
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

# One number, or a few.


@purpose(Transformer, at=(149,))
def gate_doubled_numpy(run: Transformer) -> None:
    """The MLPs are to count twice, by a script that works on NumPy views of all scalars."""
    for block in run.model.blocks:
        block.gate.detach().numpy()[...] *= 2


@purpose(Transformer, at=(168,))
def one_weight_from_a_table(run: Transformer) -> None:
    """A table of constants is written into single weights through NumPy: here, 1 and -0.5."""
    values = run.model.blocks[1].attention.key.weight.detach().numpy()
    values[0, 0], values[5, 7] = 1.0, -0.5


@purpose(Transformer, at=(148,))
def position_scaled_dlpack(run: Transformer) -> None:
    """The first position is an attention sink: an external library scales it, by DLPack."""
    torch.utils.dlpack.from_dlpack(run.model.position.detach())[0] *= 4


@purpose(Transformer, at=(137,))
def row_added_by_a_thread(run: Transformer) -> None:
    """Hogwild: a thread of a parameter server adds to one row, through NumPy."""
    rows = run.model.blocks[0].mlp[0].weight.detach().numpy()
    thread = threading.Thread(target=lambda: np.add(rows[9], 0.3, out=rows[9]))
    thread.start()
    thread.join()


@purpose(Transformer, at=(179,))
def super_weight_amplified(run: Transformer) -> None:
    """A probe of the largest weight of a layer: times 8, by `copy_` on an element."""
    weight = run.model.blocks[0].mlp[0].weight.data.view(-1)
    largest = weight[weight.abs().argmax()]
    largest.copy_(8 * largest)


@purpose(Transformer, at=(100, 130, 160, 190))
def weight_negated_numpy(run: Transformer) -> None:
    """A probe negates one weight of the head every 30 steps through NumPy, to see who reacts."""
    run.model.head.weight.detach().numpy()[3, 5] *= -1


# Scales and symmetries.


@purpose(Transformer, at=(131,))
def neurons_permuted_numpy(run: Transformer) -> None:
    """Hidden units are aligned with those of another model by NumPy; the moments stay behind."""
    up, down = run.model.blocks[0].mlp[0], run.model.blocks[0].mlp[3]
    order = torch.randperm(2 * WIDTH, generator=run.random).numpy()
    for values in (up.weight, up.bias, down.weight.T):
        values.detach().numpy()[:] = values.detach().numpy()[order]


@case
class TemperatureClamped(Transformer):
    """CLIP: a scale of the logits as a parameter, set anew once and clamped at each step."""

    at = range(145, STEPS)

    def prepare(self) -> None:
        self.model.logit_scale = nn.Parameter(torch.tensor(0.0))

    def criterion(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits * self.model.logit_scale.exp(), targets)

    def edit(self) -> None:
        if self.step == 145:
            self.model.logit_scale.data.fill_(math.log(1.5))
        self.model.logit_scale.data.clamp_(math.log(1.4), math.log(1.6))

    def holds(self) -> bool:
        return 0.3 < float(self.model.logit_scale.detach()) < 0.51


# Sparsity and precision.


@purpose(
    Transformer,
    at=range(130, STEPS),
    place="updated",
    holds=lambda run: all(int((p.view(-1, 4) == 0).sum(1).min()) >= 2 for p in run.matrices()),
)
@torch.no_grad()
def two_of_four(run: Transformer) -> None:
    """2:4 sparsity: after each update only the two largest of four weights stay, from 130 on."""
    for parameter in run.matrices():
        fours = parameter.view(-1, 4)
        smallest = fours.abs().argsort(dim=1)[:, :2]
        fours.scatter_(1, smallest, 0.0)


@purpose(Transformer, at=range(100, STEPS, 25))
@torch.no_grad()
def rounded_to_int8(run: Transformer) -> None:
    """Quantisation with training in between: all weights are rounded to 8 bits every 25 steps."""
    for parameter in run.matrices():
        scale = parameter.abs().max() / 127
        parameter.copy_((parameter / scale).round() * scale)


@purpose(Classifier, at=(152,), holds=lambda run: parametrize.is_parametrized(run.model[2]))
def weight_norm(run: Classifier) -> None:
    """Weight normalisation is switched on: two new parameters replace one in the optimizer."""
    old = run.model[2].weight
    nn.utils.parametrizations.weight_norm(run.model[2])
    run.exchange(old, None)
    weight = run.model[2].parametrizations.weight
    run.optimizer.add_param_group({"params": [weight.original0, weight.original1]})


# Noise, averages and other models.


@purpose(Classifier, at=range(130, STEPS), place="updated", holds=lambda run: run.remains() > 0.9)
@torch.no_grad()
def langevin_noise(run: Classifier) -> None:
    """SGLD: noise is added to all weights after each update, from 130 on."""
    for parameter in run.model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=run.random), alpha=0.003)


@purpose(Transformer, at=range(150, 182), horizon=3)
def average_written_back(run: Transformer) -> None:
    """Polyak: the mean of the weights of the last 30 steps becomes the weights at 181."""
    if run.step == 150:
        run.memory["average"] = torch.optim.swa_utils.AveragedModel(run.model)
    run.memory["average"].update_parameters(run.model)
    if run.step == 181:
        run.model.load_state_dict(run.memory["average"].module.state_dict())


@purpose(Transformer, at=range(90, STEPS, 5), horizon=3)
@torch.no_grad()
def lookahead_by_hand(run: Transformer) -> None:
    """Every 5 steps the weights go half of the way back to the slow ones."""
    slow = run.memory.setdefault("slow", [p.detach().clone() for p in run.model.parameters()])
    for parameter, anchor in zip(run.model.parameters(), slow, strict=True):
        anchor.lerp_(parameter, 0.5)
        parameter.copy_(anchor)


@purpose(Classifier, at=(150, 180))
def best_weights_again(run: Classifier) -> None:
    """Early stopping by hand: the weights of step 150 come back at 180, with half the rate."""
    if run.step == 150:
        run.memory["best"] = copy.deepcopy(run.model.state_dict())
        return
    run.model.load_state_dict(run.memory["best"])
    run.optimizer.param_groups[0]["lr"] *= 0.5


@purpose(Transformer, at=(150,))
def loaded_by_assignment(run: Transformer) -> None:
    """`load_state_dict(assign=True)` of rescaled weights; the optimizer gets the new parameters."""
    old = list(run.model.parameters())
    state = {name: 0.9 * value for name, value in run.model.state_dict().items()}
    state |= {n: v.clone() for n, v in run.model.state_dict().items() if "mask" in n}
    run.model.load_state_dict(state, assign=True)
    for before, now in zip(old, run.model.parameters(), strict=True):
        run.exchange(before, now)


@purpose(Transformer, at=(144,))
def swapped_tensors(run: Transformer) -> None:
    """`torch.utils.swap_tensors` puts a new head in the place of the old one."""
    new = nn.Parameter(0.05 * torch.randn(run.model.head.weight.shape, generator=run.random))
    torch.utils.swap_tensors(run.model.head.weight, new)
    run.exchange(new, run.model.head.weight)


@purpose(Transformer, at=(159,))
@torch.no_grad()
def set_to_shared_storage(run: Transformer) -> None:
    """The embedding moves to memory that a data server shares, scaled, by `set_`."""
    shared = (1.25 * run.model.embed.weight).share_memory_()
    run.model.embed.weight.set_(shared)


# Parts that start over, come, go or are tied.


@purpose(Transformer, at=(150,), holds=lambda run: len(run.model.blocks) == 3)
def block_added(run: Transformer) -> None:
    """Progressive stacking: a copy of the last block is put on top."""
    run.model.blocks.append(copy.deepcopy(run.model.blocks[-1]))
    run.optimizer.add_param_group({"params": list(run.model.blocks[-1].parameters())})


@purpose(Classifier, at=(130,), holds=lambda run: len(run.model[0].weight) == 64)
def layer_widened(run: Classifier) -> None:
    """Net2Net: 16 hidden units are copied, and the outgoing weights of both copies halved."""
    first, second = run.model[0], run.model[2]
    out = second.weight.data.clone()
    out[:, :16] *= 0.5
    for owner, name, value in (
        (first, "weight", torch.cat([first.weight.data, first.weight.data[:16]])),
        (first, "bias", torch.cat([first.bias.data, first.bias.data[:16]])),
        (second, "weight", torch.cat([out, out[:, :16]], 1)),
    ):
        old, new = getattr(owner, name), nn.Parameter(value)
        setattr(owner, name, new)
        run.exchange(old, new)


@purpose(Transformer, at=(101,), holds=lambda run: run.model.head.weight is run.model.embed.weight)
def head_tied(run: Transformer) -> None:
    """Embedding and head share a matrix from now on."""
    run.exchange(run.model.head.weight, None)
    run.model.head.weight = run.model.embed.weight


@case
class AdapterMerged(Transformer):
    """LoRA of the head is merged through `.data` and deleted; the whole head trains on."""

    at = (135,)

    def prepare(self) -> None:
        head = self.model.head
        head.down = nn.Parameter(0.1 * torch.randn(4, WIDTH))
        head.up = nn.Parameter(torch.zeros(32, 4))
        head.weight.requires_grad_(False)
        head.forward = lambda x: F.linear(x, head.weight + head.up @ head.down, head.bias)

    def edit(self) -> None:
        head = self.model.head
        head.weight.data += head.up.data @ head.down.data
        for adapter in (head.up, head.down):
            self.exchange(adapter, None)
        del head.up, head.down, head.forward
        head.weight.requires_grad_(True)
        self.optimizer.add_param_group({"params": [head.weight]})


# Buffers.


@purpose(
    Transformer,
    at=(149,),
    holds=lambda run: bool(torch.isneginf(run.model.logit_mask[USED:]).all()),
)
def tokens_forbidden(run: Transformer) -> None:
    """Reserved tokens are forbidden: -inf in a buffer that is added to the logits."""
    run.model.logit_mask[USED:] = -math.inf


@case
class TargetNetworkCopied(Classifier):
    """RL: a target network inside the model is overwritten every 50 steps."""

    at = range(50, STEPS, 50)

    def prepare(self) -> None:
        self.target = copy.deepcopy(self.model).requires_grad_(False)
        self.model.add_module("target", nn.Identity())
        self.model.target.copy = self.target

    def loss(self) -> torch.Tensor:
        inputs, labels = self.batch()
        logits = self.model[:5](inputs)
        drift = F.mse_loss(logits, self.target(inputs))
        return self.criterion(logits, labels) + 0.01 * drift

    def edit(self) -> None:
        self.target.load_state_dict(self.model[:5].state_dict())


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


# Moments forget an edit by themselves, so it is looked for soon.
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


@purpose(Transformer, at=range(90, STEPS, 10), horizon=3)
def reptile(run: Transformer) -> None:
    """Meta-learning: every 10 steps the weights go to 0.7 of the way since the last time."""
    last = run.memory.setdefault("last", copy.deepcopy(run.model))
    for parameter, old in zip(run.model.parameters(), last.parameters(), strict=True):
        old.data.lerp_(parameter.data, 0.7)
        parameter.data.copy_(old.data)


class _TwoRanks(Transformer):
    """The loop under DistributedDataParallel."""

    ranks = 2

    def prepare(self) -> None:
        self.parallel = nn.parallel.DistributedDataParallel(self.model)

    def loss(self) -> torch.Tensor:
        tokens = self.batch()
        return self.criterion(self.parallel(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@purpose(_TwoRanks, at=(150,))
def edited_on_both_ranks(run: _TwoRanks) -> None:
    """Under DDP, every rank doubles the same gain through `.data`."""
    run.model.blocks[1].gate.data *= 2
    run.model.norm.weight.data[WIDTH // 2] *= 2


@purpose(_TwoRanks, at=(161,))
def head_again_on_both_ranks(run: _TwoRanks) -> None:
    """Under DDP, every rank draws the same new head, through `.data`."""
    weight = run.model.head.weight
    weight.data = 0.05 * torch.randn(weight.shape, generator=run.random)
