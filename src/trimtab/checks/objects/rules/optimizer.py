"""Rules on what the optimizers hold, decay and leave out, on the clip threshold, a resume, and
updates that are lost to rounding.

The curve of the scheduler is judged by the rules on configs.
"""

import re
import statistics
from collections import Counter

import numpy as np
from torch import nn

from trimtab.checks.objects.inputs import Inputs
from trimtab.checks.objects.measure.trace import is_norm
from trimtab.checks.objects.measure.training import ShortRun, Simulation
from trimtab.checks.rule import Fault, Level, NotMeasured, advice, brief, error, listed, warning
from trimtab.checks.rules.schedule import RESUME_RATIO
from trimtab.live.measure.roles import role_of

TIGHT, LOOSE = 0.1, 100.0
"""Clip threshold over the median norm. In 30 public logs the median norm is 0.1 to 5 and the
threshold 1 (TT003 of `trimtab check`); the batches here are small, so their norms are
larger."""

_INDEX = re.compile(r"\.\d+\.")


@error(
    "PF030",
    "No optimizer holds a trained parameter",
    source="F19 of the catalogue",
    cannot_see="optimizers that were not given",
)
def not_held(inputs: Inputs) -> Fault | str:
    """It gets gradients at every step and never moves."""
    held = {id(p) for p in inputs.held}
    named = dict(inputs.model.named_parameters())
    missing = [name for name, p in named.items() if p.requires_grad and id(p) not in held]
    if missing:
        fix = "add them to a parameter group, or freeze them with requires_grad_(False)"
        return Fault(f"held by no optimizer: {listed(missing)}", how=fix)
    return f"all {len(named)} parameters are held or frozen"


@warning(
    "PF032",
    "The optimizer holds tensors that are not the model's",
    source="torch.optim: construct the model's parameters first",
    cannot_see="parameters of a second module that is trained too",
)
def foreign(inputs: Inputs) -> Fault | str:
    """The optimizer was made before the model was copied, moved or wrapped: it moves the old
    tensors, and the model stays as it is."""
    own = {id(p) for p in inputs.model.parameters()}
    held = inputs.held
    strange = [p for p in held if id(p) not in own]
    if strange:
        what = f"{len(strange)} of {len(held)} tensors of the optimizer are not in the model"
        level = Level.ERROR if len(strange) == len(held) else Level.WARNING
        return Fault(
            what, how="make the optimizer from model.parameters() as the last thing", level=level
        )
    return f"all {len(held)} tensors of the optimizer are the model's"


@warning(
    "PF033",
    "A parameter looks frozen by mistake",
    source="F19 of the catalogue",
    cannot_see="what was meant: whole parts that are frozen together pass",
)
def frozen(inputs: Inputs) -> Fault | str:
    """A frozen parameter is held by an optimizer, or its siblings in other layers are trained."""
    named = dict(inputs.model.named_parameters())
    held = {id(p) for p in inputs.held}
    kept = [name for name, p in named.items() if not p.requires_grad and id(p) in held]
    trained = Counter(_kind(name) for name, p in named.items() if p.requires_grad)
    odd = [
        name
        for name, p in named.items()
        # Freezing the first layers is a choice; a few odd ones among many trained are not.
        if not p.requires_grad
        and _INDEX.search(name)
        and _is_odd(name, named)
        and trained[_kind(name)]
    ]
    found = list(dict.fromkeys((*odd, *kept)))
    if found and (odd or len(kept) < len(named)):
        fix = "call requires_grad_(True), or take it out of the optimizer"
        return Fault(f"frozen: {listed(found)}", how=fix)
    count = sum(not p.requires_grad for p in named.values())
    return f"{count} of {len(named)} parameters are frozen, none by itself"


@advice(
    "PF034",
    "Norms, biases or embeddings are decayed",
    source="TT008 and TT009 of `trimtab check`; GPT-3, Megatron-LM; OLMo 2 for embeddings",
    cannot_see="decay that is not an option of a parameter group",
)
def decayed(inputs: Inputs) -> Fault | str:
    """A gain has no reason to be near zero, and the row of a rare token shrinks at every step in
    which it does not occur."""
    names = {id(p): name for name, p in inputs.model.named_parameters()}
    norms = {
        f"{name}.{part}".lstrip(".")
        for name, module in inputs.model.named_modules()
        if is_norm(module)
        for part, _ in module.named_parameters()
    }
    tables = {
        f"{name}.weight"
        for name, module in inputs.model.named_modules()
        if isinstance(module, nn.Embedding)
    }
    bad: dict[str, list[str]] = {"norms": [], "biases": [], "embeddings": []}
    groups = [group for group in inputs.groups if group.get("weight_decay")]
    for parameter in (parameter for group in groups for parameter in group["params"]):
        name = names.get(id(parameter), "")
        if name in norms or (parameter.dim() < 2 and role_of(name) == "norm"):
            bad["norms"].append(name)
        elif name.endswith("bias"):
            bad["biases"].append(name)
        elif name in tables:
            bad["embeddings"].append(name)
    found = [f"{kind}: {listed(those)}" for kind, those in bad.items() if those]
    if found:
        return Fault("; ".join(found), how="give them a parameter group with weight_decay 0")
    return "no norm, bias or embedding is decayed"


@warning(
    "PF035",
    "The clip threshold does not fit the gradients",
    source="TT003 of `trimtab check`: the median norm of 30 public logs is 0.1 to 5, clipped at 1",
    cannot_see="norms after the first ten steps, and those of the full batch",
)
def clip(short_run: ShortRun, inputs: Inputs) -> Fault | str:
    """A threshold far below the usual norm turns every step into one of fixed length; one far above
    it never acts."""
    if not inputs.clip_norm:
        raise NotMeasured("clip_norm= was not given")
    middle = statistics.median(short_run.norms)
    what = f"clip_norm {brief(inputs.clip_norm)}, median norm of ten steps {brief(middle)}"
    fix = f"clip near {brief(2 * middle)}; published runs clip at 1"
    if inputs.clip_norm < TIGHT * middle:
        return Fault(what, how=fix)
    if inputs.clip_norm > LOOSE * middle:
        return Fault(what, how=fix, level=Level.ADVICE)
    return what


def _kind(name: str) -> str:
    return _INDEX.sub(".*.", name, count=1)


def _is_odd(name: str, named: dict[str, nn.Parameter]) -> bool:
    """Whether less than half of the same parameters of other layers are frozen, and its own layer
    is otherwise trained."""
    same = [p.requires_grad for other, p in named.items() if _kind(other) == _kind(name)]
    match = _INDEX.search(name)
    layer = name[: match.end()] if match else ""
    near = [p.requires_grad for other, p in named.items() if other.startswith(layer)]
    return sum(same) > len(same) / 2 and any(near)


@error(
    "PF040",
    "The learning rate jumps at a resume",
    source="F05 of the catalogue; the ratio is that of TT031 of `trimtab check`",
    cannot_see="what the training script saves; state_dict of scheduler and optimizer are assumed",
)
def resume(simulation: Simulation) -> Fault | str:
    """The scheduler's state does not hold all that its rate depends on, so a resumed run goes on at
    a rate that weights and moments have never seen."""
    at, after = simulation.resumed_at, simulation.resumed
    if not len(after):
        raise NotMeasured("the run is too short to be resumed")
    wanted = simulation.rates[at : at + len(after)]
    floor = 1e-6 * np.abs(simulation.rates).max()
    low, high = np.minimum(wanted, after), np.maximum(wanted, after)
    apart = high - RESUME_RATIO * np.maximum(low, 0.0)
    row, group = np.unravel_index(int(np.argmax(apart)), apart.shape)
    what = (
        f"resumed at step {at:,}: {brief(after[row, group])} where the run has "
        f"{brief(wanted[row, group])}"
    )
    if apart[row, group] > floor:
        fix = "save and load every attribute that the rate depends on in state_dict"
        return Fault(what, how=fix)
    return what


LOST = 0.5
"""Share of the elements with a gradient that ten steps at the peak rate leave as they are. In bf16
an update below 2^-9 of the weight is rounded away."""


@warning(
    "PF022",
    "Updates do not change the weights",
    source="F19 of the catalogue; Zamirai et al. 2020 (bf16 weights need master weights or "
    "stochastic rounding)",
    cannot_see="vectors (norms and biases), and schedules that reach 0 after the peak",
)
def lost_updates(short_run: ShortRun) -> Fault | str:
    """A learning rate of 0, or updates below the rounding of the weight's format: the step costs as
    much as any other and nothing is learned."""
    lost = short_run.unchanged
    if not lost:
        raise NotMeasured("no matrix with a gradient is held by an optimizer")
    bad = [f"{name} ({100 * share:.0f} %)" for name, share in lost.items() if share > LOST]
    if bad:
        level = Level.ERROR if min(lost.values()) > LOST else Level.WARNING
        fix = "keep fp32 master weights, or raise the learning rate of this group"
        return Fault(f"elements as they were after ten steps: {listed(bad)}", how=fix, level=level)
    return f"at most {100 * max(lost.values()):.1f} % of a matrix stays as it is"
