"""What users do on purpose to the values of weights in the middle of a run."""

import math
import threading

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize, prune

from benchmarks.attack.purpose_cases.loop import (
    STEPS,
    USED,
    WIDTH,
    Classifier,
    Images,
    Transformer,
    case,
    purpose,
)

# One number, or a few.


@purpose(Transformer, at=(151,))
def gate_doubled(run: Transformer) -> None:
    """The MLP of the last block is to count twice: one scalar, through `.data`."""
    run.model.blocks[1].gate.data *= 2


@purpose(Transformer, at=(149,))
def gate_doubled_numpy(run: Transformer) -> None:
    """The same by a script that works on NumPy views of all scalars."""
    for block in run.model.blocks:
        block.gate.detach().numpy()[...] *= 2


@purpose(Transformer, at=(140,))
@torch.no_grad()
def one_gain_doubled(run: Transformer) -> None:
    """One gain of a norm inside a block is doubled by indexing under `no_grad`."""
    run.model.blocks[1].norm2.weight[5] *= 2


@purpose(Transformer, at=(151, 152, 153))
def gate_faded_in(run: Transformer) -> None:
    """A gate grows in three steps in a row, each time doubled, through `.data`."""
    run.model.blocks[0].gate.data.mul_(2)


@purpose(Transformer, at=(130,))
def gate_closed(run: Transformer) -> None:
    """ReZero in the middle: the gate of a block is set to 0 by NumPy and may open again."""
    run.model.blocks[1].gate.detach().numpy().fill(0)


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


@purpose(Transformer, at=(171,))
def norm_folded_numpy(run: Transformer) -> None:
    """The gain of the last norm is folded into the head and set to 1, through NumPy."""
    gain = run.model.norm.weight.detach().numpy()
    run.model.head.weight.detach().numpy()[...] *= gain
    gain.fill(1)


@purpose(Transformer, at=(160,))
def outlier_channel_damped(run: Transformer) -> None:
    """One gain of a LayerNorm feeds an outlier channel: it is divided by 16 through NumPy."""
    run.model.norm.weight.detach().numpy()[7] /= 16


@purpose(Transformer, at=(141,))
def super_weight_removed(run: Transformer) -> None:
    """An ablation of the single largest weight of a layer: set to 0 through `.data`."""
    weight = run.model.blocks[0].mlp[3].weight
    weight.data.view(-1)[weight.detach().abs().argmax()] = 0


@purpose(Transformer, at=(179,))
def super_weight_amplified(run: Transformer) -> None:
    """The same ablation the other way: the largest weight times 8, by `copy_` on an element."""
    weight = run.model.blocks[0].mlp[0].weight.data.view(-1)
    largest = weight[weight.abs().argmax()]
    largest.copy_(8 * largest)


@purpose(Transformer, at=(100, 130, 160, 190))
def weight_negated_numpy(run: Transformer) -> None:
    """A probe negates one weight of the head every 30 steps through NumPy, to see who reacts."""
    run.model.head.weight.detach().numpy()[3, 5] *= -1


@purpose(Transformer, at=(120,))
@torch.no_grad()
def prior_in_bias(run: Transformer) -> None:
    """A class has become frequent: its bias is raised by 2 nats, one element, `no_grad`."""
    run.model.head.bias[4] += 2.0


@purpose(Transformer, at=(110,))
def reserved_token_started(run: Transformer) -> None:
    """A reserved token gets the mean of the others as its embedding before it is used."""
    run.model.embed.weight.data[30] = run.model.embed.weight.data[:USED].mean(0)


# Scales and symmetries.


@purpose(Classifier, at=(140,))
@torch.no_grad()
def layers_rescaled(run: Classifier) -> None:
    """Two layers are balanced: one times 4, the next divided by 4; with ReLU nothing changes."""
    run.model[0].weight.mul_(4)
    run.model[0].bias.mul_(4)
    run.model[2].weight.div_(4)


@purpose(Classifier, at=(170,))
def exponents_shifted_numpy(run: Classifier) -> None:
    """The same exactly, by `ldexp` on NumPy views, so that no bit of a mantissa changes."""
    for name, by in (("0.weight", 1), ("0.bias", 1), ("2.weight", -1)):
        values = run.model.get_parameter(name).detach().numpy()
        np.ldexp(values, by, out=values)


@purpose(Transformer, at=(131,))
def neurons_permuted_numpy(run: Transformer) -> None:
    """Hidden units are aligned with those of another model by NumPy; the moments stay behind."""
    up, down = run.model.blocks[0].mlp[0], run.model.blocks[0].mlp[3]
    order = torch.randperm(2 * WIDTH, generator=run.random).numpy()
    for values in (up.weight, up.bias, down.weight.T):
        values.detach().numpy()[:] = values.detach().numpy()[order]


@purpose(Transformer, at=range(100, STEPS, 40))
@torch.no_grad()
def queries_orthogonal(run: Transformer) -> None:
    """Queries and keys are made orthogonal every 40 steps."""
    for block in run.model.blocks:
        for layer in (block.attention.query, block.attention.key):
            layer.weight.copy_(torch.linalg.qr(layer.weight)[0])


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


@purpose(Classifier, at=(111, 171), holds=lambda run: not prune.is_pruned(run.model))
def prune_and_remove(run: Classifier) -> None:
    """`torch.nn.utils.prune` at 111, made permanent by `prune.remove` at 171."""
    for layer in (run.model[0], run.model[2]):
        if run.step == 111:
            prune.l1_unstructured(layer, "weight", 0.5)
            continue
        old = layer.weight_orig
        prune.remove(layer, "weight")
        run.exchange(old, layer.weight)


@purpose(Transformer, at=(161,))
def heads_pruned(run: Transformer) -> None:
    """One head of attention is removed: its values and its columns of the output are zeroed."""
    attention = run.model.blocks[1].attention
    attention.value.weight.data[: WIDTH // 2].zero_()
    attention.out.weight.data[:, : WIDTH // 2].zero_()


@purpose(Images, at=(140,), horizon=5)
@torch.no_grad()
def channels_masked(run: Images) -> None:
    """Half of the channels are switched off by zeroing their BatchNorm gains and biases."""
    for norm in run.norms():
        norm.weight[::2] = 0
        norm.bias[::2] = 0


@purpose(Transformer, at=range(100, STEPS, 25))
@torch.no_grad()
def rounded_to_int8(run: Transformer) -> None:
    """Quantisation with training in between: all weights are rounded to 8 bits every 25 steps."""
    for parameter in run.matrices():
        scale = parameter.abs().max() / 127
        parameter.copy_((parameter / scale).round() * scale)


@purpose(
    Classifier,
    at=(119,),
    holds=lambda run: float(torch.linalg.matrix_norm(run.model[2].weight.detach(), 2)) < 1.2,
)
def spectral_norm(run: Classifier) -> None:
    """Spectral normalisation is switched on for the middle layer."""
    nn.utils.parametrizations.spectral_norm(run.model[2])


@purpose(Classifier, at=(152,), holds=lambda run: parametrize.is_parametrized(run.model[2]))
def weight_norm(run: Classifier) -> None:
    """Weight normalisation is switched on: two new parameters replace one in the optimizer."""
    old = run.model[2].weight
    nn.utils.parametrizations.weight_norm(run.model[2])
    run.exchange(old, None)
    weight = run.model[2].parametrizations.weight
    run.optimizer.add_param_group({"params": [weight.original0, weight.original1]})
