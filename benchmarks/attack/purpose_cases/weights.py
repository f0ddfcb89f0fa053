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
)

# One number, or a few.


@case
class GateDoubled(Transformer):
    """The MLP of the last block is to count twice: one scalar, through `.data`."""

    at = (151,)

    def edit(self) -> None:
        self.model.blocks[1].gate.data *= 2


@case
class GateDoubledNumpy(Transformer):
    """The same by a script that works on NumPy views of all scalars."""

    at = (149,)

    def edit(self) -> None:
        for block in self.model.blocks:
            block.gate.detach().numpy()[...] *= 2


@case
class OneGainDoubled(Transformer):
    """One gain of a norm inside a block is doubled by indexing under `no_grad`."""

    at = (140,)

    @torch.no_grad()
    def edit(self) -> None:
        self.model.blocks[1].norm2.weight[5] *= 2


@case
class GateFadedIn(Transformer):
    """A gate grows in three steps in a row, each time doubled, through `.data`."""

    at = (151, 152, 153)

    def edit(self) -> None:
        self.model.blocks[0].gate.data.mul_(2)


@case
class GateClosed(Transformer):
    """ReZero in the middle: the gate of a block is set to 0 by NumPy and may open again."""

    at = (130,)

    def edit(self) -> None:
        self.model.blocks[1].gate.detach().numpy().fill(0)


@case
class OneWeightFromATable(Transformer):
    """A table of constants is written into single weights through NumPy: here, 1 and -0.5."""

    at = (168,)

    def edit(self) -> None:
        values = self.model.blocks[1].attention.key.weight.detach().numpy()
        values[0, 0], values[5, 7] = 1.0, -0.5


@case
class PositionScaledDlpack(Transformer):
    """The first position is an attention sink: an external library scales it, by DLPack."""

    at = (148,)

    def edit(self) -> None:
        torch.utils.dlpack.from_dlpack(self.model.position.detach())[0] *= 4


@case
class RowAddedByAThread(Transformer):
    """Hogwild: a thread of a parameter server adds to one row, through NumPy."""

    at = (137,)

    def edit(self) -> None:
        rows = self.model.blocks[0].mlp[0].weight.detach().numpy()
        thread = threading.Thread(target=lambda: np.add(rows[9], 0.3, out=rows[9]))
        thread.start()
        thread.join()


@case
class NormFoldedNumpy(Transformer):
    """The gain of the last norm is folded into the head and set to 1, through NumPy."""

    at = (171,)

    def edit(self) -> None:
        gain = self.model.norm.weight.detach().numpy()
        self.model.head.weight.detach().numpy()[...] *= gain
        gain.fill(1)


@case
class OutlierChannelDamped(Transformer):
    """One gain of a LayerNorm feeds an outlier channel: it is divided by 16 through NumPy."""

    at = (160,)

    def edit(self) -> None:
        self.model.norm.weight.detach().numpy()[7] /= 16


@case
class SuperWeightRemoved(Transformer):
    """An ablation of the single largest weight of a layer: set to 0 through `.data`."""

    at = (141,)

    def edit(self) -> None:
        weight = self.model.blocks[0].mlp[3].weight
        weight.data.view(-1)[weight.detach().abs().argmax()] = 0


@case
class SuperWeightAmplified(Transformer):
    """The same ablation the other way: the largest weight times 8, by `copy_` on an element."""

    at = (179,)

    def edit(self) -> None:
        weight = self.model.blocks[0].mlp[0].weight.data.view(-1)
        largest = weight[weight.abs().argmax()]
        largest.copy_(8 * largest)


@case
class WeightNegatedNumpy(Transformer):
    """A probe negates one weight of the head every 30 steps through NumPy, to see who reacts."""

    at = (100, 130, 160, 190)

    def edit(self) -> None:
        self.model.head.weight.detach().numpy()[3, 5] *= -1


@case
class PriorInBias(Transformer):
    """A class has become frequent: its bias is raised by 2 nats, one element, `no_grad`."""

    at = (120,)

    @torch.no_grad()
    def edit(self) -> None:
        self.model.head.bias[4] += 2.0


@case
class ReservedTokenStarted(Transformer):
    """A reserved token gets the mean of the others as its embedding before it is used."""

    at = (110,)

    def edit(self) -> None:
        self.model.embed.weight.data[30] = self.model.embed.weight.data[:USED].mean(0)


# Scales and symmetries.


@case
class LayersRescaled(Classifier):
    """Two layers are balanced: one times 4, the next divided by 4; with ReLU nothing changes."""

    at = (140,)

    @torch.no_grad()
    def edit(self) -> None:
        self.model[0].weight.mul_(4)
        self.model[0].bias.mul_(4)
        self.model[2].weight.div_(4)


@case
class ExponentsShiftedNumpy(Classifier):
    """The same exactly, by `ldexp` on NumPy views, so that no bit of a mantissa changes."""

    at = (170,)

    def edit(self) -> None:
        for name, by in (("0.weight", 1), ("0.bias", 1), ("2.weight", -1)):
            values = self.model.get_parameter(name).detach().numpy()
            np.ldexp(values, by, out=values)


@case
class NeuronsPermutedNumpy(Transformer):
    """Hidden units are aligned with those of another model by NumPy; the moments stay behind."""

    at = (131,)

    def edit(self) -> None:
        up, down = self.model.blocks[0].mlp[0], self.model.blocks[0].mlp[3]
        order = torch.randperm(2 * WIDTH, generator=self.random).numpy()
        for values in (up.weight, up.bias, down.weight.T):
            values.detach().numpy()[:] = values.detach().numpy()[order]


@case
class QueriesOrthogonal(Transformer):
    """Queries and keys are made orthogonal every 40 steps."""

    at = range(100, STEPS, 40)

    @torch.no_grad()
    def edit(self) -> None:
        for block in self.model.blocks:
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


@case
class TwoOfFour(Transformer):
    """2:4 sparsity: after each update only the two largest of four weights stay, from 130 on."""

    at = range(130, STEPS)
    place = "updated"

    @torch.no_grad()
    def edit(self) -> None:
        for parameter in self.matrices():
            fours = parameter.view(-1, 4)
            smallest = fours.abs().argsort(dim=1)[:, :2]
            fours.scatter_(1, smallest, 0.0)

    def holds(self) -> bool:
        return all(int((p.view(-1, 4) == 0).sum(1).min()) >= 2 for p in self.matrices())


@case
class PruneAndRemove(Classifier):
    """`torch.nn.utils.prune` at 111, made permanent by `prune.remove` at 171."""

    at = (111, 171)

    def edit(self) -> None:
        for layer in (self.model[0], self.model[2]):
            if self.step == 111:
                prune.l1_unstructured(layer, "weight", 0.5)
                continue
            old = layer.weight_orig
            prune.remove(layer, "weight")
            self.exchange(old, layer.weight)

    def holds(self) -> bool:
        return not prune.is_pruned(self.model)


@case
class HeadsPruned(Transformer):
    """One head of attention is removed: its values and its columns of the output are zeroed."""

    at = (161,)

    def edit(self) -> None:
        attention = self.model.blocks[1].attention
        attention.value.weight.data[: WIDTH // 2].zero_()
        attention.out.weight.data[:, : WIDTH // 2].zero_()


@case
class ChannelsMasked(Images):
    """Half of the channels are switched off by zeroing their BatchNorm gains and biases."""

    at = (140,)
    horizon = 5

    @torch.no_grad()
    def edit(self) -> None:
        for norm in self.norms():
            norm.weight[::2] = 0
            norm.bias[::2] = 0


@case
class RoundedToInt8(Transformer):
    """Quantisation with training in between: all weights are rounded to 8 bits every 25 steps."""

    at = range(100, STEPS, 25)

    @torch.no_grad()
    def edit(self) -> None:
        for parameter in self.matrices():
            scale = parameter.abs().max() / 127
            parameter.copy_((parameter / scale).round() * scale)


@case
class SpectralNorm(Classifier):
    """Spectral normalisation is switched on for the middle layer."""

    at = (119,)

    def edit(self) -> None:
        nn.utils.parametrizations.spectral_norm(self.model[2])

    def holds(self) -> bool:
        return float(torch.linalg.matrix_norm(self.model[2].weight.detach(), 2)) < 1.2


@case
class WeightNorm(Classifier):
    """Weight normalisation is switched on: two new parameters replace one in the optimizer."""

    at = (152,)

    def edit(self) -> None:
        old = self.model[2].weight
        nn.utils.parametrizations.weight_norm(self.model[2])
        self.exchange(old, None)
        weight = self.model[2].parametrizations.weight
        self.optimizer.add_param_group({"params": [weight.original0, weight.original1]})

    def holds(self) -> bool:
        return parametrize.is_parametrized(self.model[2])
