"""What users do on purpose with whole models: noise, averages, other checkpoints."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.attack.purpose_cases.loop import (
    STEPS,
    Classifier,
    Transformer,
    markov,
    purpose,
)

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


@purpose(Transformer, at=(140,), horizon=3)
def soup_with_sibling(run: Transformer) -> None:
    """Model soup: the mean with a copy that was trained aside on another domain for 20 steps."""
    sibling = copy.deepcopy(run.model)
    optimizer = torch.optim.Adam(sibling.parameters(), lr=3e-3)
    for index in range(20):
        tokens = markov(5000 + index, 16, 13, 1)
        logits = sibling(tokens[:, :-1]).flatten(0, 1)
        F.cross_entropy(logits, tokens[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    for mine, other in zip(run.model.parameters(), sibling.parameters(), strict=True):
        mine.data = torch.lerp(mine.data, other.data, 0.5)


@purpose(Transformer, at=(90, 170))
@torch.no_grad()
def task_vector_subtracted(run: Transformer) -> None:
    """Unlearning: a third of what the weights have learned since step 90 is taken back."""
    if run.step == 90:
        run.memory["start"] = [p.detach().clone() for p in run.model.parameters()]
        return
    for parameter, start in zip(run.model.parameters(), run.memory["start"], strict=True):
        parameter -= 0.33 * (parameter - start)


@purpose(Classifier, at=(150, 180))
def best_weights_again(run: Classifier) -> None:
    """Early stopping by hand: the weights of step 150 come back at 180, with half the rate."""
    if run.step == 150:
        run.memory["best"] = copy.deepcopy(run.model.state_dict())
        return
    run.model.load_state_dict(run.memory["best"])
    run.optimizer.param_groups[0]["lr"] *= 0.5


@purpose(Transformer, at=(130,))
def partly_loaded(run: Transformer) -> None:
    """Only the blocks are taken from another checkpoint, `strict=False`."""
    other = type(run)(seed=9).model.state_dict()
    blocks = {name: value for name, value in other.items() if "blocks.1" in name}
    run.model.load_state_dict(blocks, strict=False)


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
