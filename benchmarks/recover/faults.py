"""Faults in a small language model: what they cost without a guard, in `protect`, in `recover`.

All arms of a seed have the same weights, data and schedule. The numbers are those of the catalogue
(docs/detection.md). What hardware does is written past torch's counters, through a NumPy view.
"""

import functools
import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import optim

import trimtab
from benchmarks.recover.worlds import VOCABULARY, WORLDS, Data, Run
from benchmarks.result_cache import ResultCache
from benchmarks.results import publish, table
from trimtab.core.errors import TrimtabError
from trimtab.core.events import SETTING_CHANGED
from trimtab.journal import RunDirectory, read_journal

STEPS, WARMUP = 260, 20
EARLIEST, LATEST = 110, 150
"""The onset: after a baseline, and with time to see the outcome."""

TITLE = "Recover: faults"
ARMS = ("no guard", "protect", "recover")
BAR, MAX_LOST = 0.02, 20
FIRST_SEED = 7102
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t at 97.5 %, by the number of pairs."""

Batch = torch.Tensor


class Onset:
    """The step at which a fault begins in a run, and the dice that decide what it hits."""

    def __init__(self, name: str, seed: int) -> None:
        self.dice = np.random.default_rng([seed, *name.encode()])
        self.step = int(self.dice.integers(EARLIEST, LATEST))


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is changed of a run, from the onset on; by default nothing."""

    title: str = "none"
    helped_by: str = "-"
    """What takes the harm away: an undo, a discard, time, or nothing that is done unasked."""
    in_fp16: bool = False
    restarts: bool = False
    """Whether the run ends before the onset and goes on under a new guard."""
    before: Callable[[Run, Onset, int], None] = lambda run, onset, step: None
    """Changes the state or the options before a step."""
    batch: Callable[[Batch, Onset, int], Batch] = lambda batch, onset, step: batch
    loss: Callable[[torch.Tensor, int], torch.Tensor] = lambda loss, since: loss
    """The loss that the run gets, by the steps since the onset."""
    gradients: Callable[[Run, Onset, int], None] = lambda run, onset, step: None
    rate: Callable[[float, Onset, int], float] = lambda planned, onset, step: planned
    """The factor of the learning rate."""


def _at_onset(
    change: Callable[[Run, np.random.Generator], object],
) -> Callable[[Run, Onset, int], None]:
    def before(run: Run, onset: Onset, step: int) -> None:
        if step == onset.step:
            change(run, onset.dice)

    return before


def _degenerate(batch: Batch, onset: Onset, step: int) -> Batch:
    """Return rows of one token, or of random tokens."""
    if not 0 <= step - onset.step <= onset.step % 5:
        return batch
    dice = np.random.default_rng([onset.step, step])
    shape = (len(batch), 1) if onset.step % 2 else tuple(batch.shape)
    return torch.from_numpy(dice.integers(0, VOCABULARY, shape)).expand(batch.shape).clone()


def _raised(shortest: int, longest: int) -> Callable[[float, Onset, int], float]:
    def rate(planned: float, onset: Onset, step: int) -> float:
        length = shortest + onset.step % (longest - shortest + 1)
        return planned * (30 if 0 <= step - onset.step < length else 1)

    return rate


def _for_good(factor: float) -> Callable[[float, Onset, int], float]:
    return lambda planned, onset, step: planned * (factor if step >= onset.step else 1)


def _inverted(planned: float, onset: Onset, step: int) -> float:
    """Return a rate that rises as fast as it should fall, twice over."""
    if step < onset.step:
        return planned
    last = _planned(onset.step)
    return last * (last / planned) ** 2


def _divide_moments(divisor: float) -> Callable[[Run, np.random.Generator], None]:
    def change(run: Run, dice: np.random.Generator) -> None:
        for state in run.optimizer.state.values():
            state["exp_avg_sq"].numpy()[...] /= divisor

    return change


def _set_option(name: str, value: Callable[[float], float]) -> Callable[[Run, object], None]:
    def change(run: Run, dice: object) -> None:
        for group in run.optimizer.param_groups:
            group[name] = value(group[name])

    return change


def _masked_mean(num_batches: int) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """Return a mean over no targets, which is 0/0, for some batches."""
    nothing = torch.zeros(())
    return lambda loss, since: loss * nothing / nothing if 0 <= since < num_batches else loss


def _flip_gradient(run: Run, dice: np.random.Generator) -> None:
    _flip(next(p.grad for p in run.model.parameters() if p.grad is not None), dice)


def _flip_weight(run: Run, dice: np.random.Generator) -> None:
    matrices = [p for p in run.model.parameters() if p.dim() == 2]
    _flip(matrices[int(dice.integers(len(matrices)))], dice)


def _load_old_weights(run: Run, onset: Onset, step: int) -> None:
    """Keep the weights of a fifth of the way, and load them."""
    if step == onset.step // 5:
        run.memory["old"] = {k: v.clone() for k, v in run.model.state_dict().items()}
    if step == onset.step:
        run.model.load_state_dict(run.memory["old"])


FAULTS = {
    "F02": Fault(
        title="F02 degenerate tokens, 1 to 5 batches", helped_by="time", batch=_degenerate
    ),
    "F05": Fault(
        title="F05 learning rate x30 for 5 to 12 steps", helped_by="undo", rate=_raised(5, 12)
    ),
    "F05Long": Fault(
        title="F05 learning rate x30 for 20 to 40 steps", helped_by="nothing", rate=_raised(20, 40)
    ),
    "F06": Fault(
        title="F06 optimizer state lost in a resume",
        helped_by="time",
        restarts=True,
        before=_at_onset(lambda run, dice: run.optimizer.state.clear()),
    ),
    "F07": Fault(
        title="F07 second moments 10,000 times too small",
        helped_by="undo",
        before=_at_onset(_divide_moments(1e4)),
    ),
    "ZeroMoments": Fault(
        title="second moments zeroed", helped_by="undo", before=_at_onset(_divide_moments(math.inf))
    ),
    "F08": Fault(
        title="F08 epsilon 0.1, for good",
        helped_by="nothing",
        before=_at_onset(_set_option("eps", lambda eps: 0.1)),
    ),
    "F11": Fault(
        title="F11 fp16 overflow, 3 steps",
        helped_by="discard",
        in_fp16=True,
        loss=lambda loss, since: loss * math.inf if 0 <= since < 3 else loss,
    ),
    "F12": Fault(title="F12 0/0 in the loss, 1 batch", helped_by="discard", loss=_masked_mean(1)),
    "F12Long": Fault(
        title="F12 0/0 in the loss, 8 batches", helped_by="discard", loss=_masked_mean(8)
    ),
    "F13": Fault(
        title="F13 bit 30 of a gradient", helped_by="discard", gradients=_at_onset(_flip_gradient)
    ),
    "F13w": Fault(
        title="F13w bit 30 of a weight", helped_by="undo", before=_at_onset(_flip_weight)
    ),
    "F18": Fault(
        title="F18 old weights after a resume",
        helped_by="nothing",
        restarts=True,
        before=_load_old_weights,
    ),
    "F19": Fault(
        title="F19 parameters frozen, for good",
        helped_by="nothing",
        before=_at_onset(lambda run, dice: run.model.blocks.requires_grad_(False)),
    ),
    "F23": Fault(
        title="F23 weight decay x300, for good",
        helped_by="nothing",
        before=_at_onset(_set_option("weight_decay", lambda decay: 300 * decay)),
    ),
    "F24": Fault(title="F24 schedule inverted, for good", helped_by="nothing", rate=_inverted),
    "LastingRate": Fault(
        title="learning rate x10, for good", helped_by="nothing", rate=_for_good(10)
    ),
    "Divergence": Fault(
        title="learning rate x300, for good", helped_by="nothing", rate=_for_good(300)
    ),
}
CLEAN = {"Fault": Fault(), "CleanFp16": Fault(in_fp16=True)}
"""Runs without a fault."""


def _flip(tensor: torch.Tensor, dice: np.random.Generator) -> None:
    """Flip bit 30 of a random element as hardware does."""
    whole = tensor.detach().numpy().reshape(-1).view(np.uint32)
    whole[int(dice.integers(len(whole)))] ^= np.uint32(1 << 30)


def _planned(step: int) -> float:
    if step < WARMUP:
        return (step + 1) / WARMUP
    return 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP)))


def train(fault: Fault, onset: Onset, seed: int, arm: str, folder: str) -> float:
    """Train one run; returns its final loss on data that it has not seen."""
    torch.manual_seed(seed)
    world = WORLDS[0]
    model: Any = world.model()
    run = Run(world, model, world.optimizer(model.parameters()))
    rates = [float(group["lr"]) for group in run.optimizer.param_groups]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=fault.in_fp16)

    def batch_loss(batch: Batch) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16, enabled=fault.in_fp16):
            return run.batch_loss(batch)

    def enter(stack: ExitStack) -> Any:
        return stack.enter_context(
            trimtab.watch(
                model,
                run.optimizer,
                run_dir=folder,
                mode="recover" if arm == "recover" else "protect",
                enabled=arm != "no guard",
                batch_loss=batch_loss if arm == "recover" else None,
                state={"scaler": scaler if fault.in_fp16 else None},
            )
        )

    with ExitStack() as stack:
        guard = enter(stack)
        for step, drawn in enumerate(_data(seed)):
            is_restart = fault.restarts and step == onset.step
            if is_restart:
                stack.close()
            fault.before(run, onset, step)
            if is_restart:
                guard = enter(stack)
            _set_rates(run.optimizer, rates, fault.rate(_planned(step), onset, step))
            batch = fault.batch(drawn, onset, step)
            loss = fault.loss(batch_loss(batch), step - onset.step)
            guard.record(loss=loss, tokens=batch.numel(), batch=batch)
            scaler.scale(loss).backward()
            fault.gradients(run, onset, step)
            scaler.unscale_(run.optimizer)
            guard.clip_grad_norm_(1.0)
            scaler.step(run.optimizer)
            scaler.update()
            run.optimizer.zero_grad()
    with torch.no_grad():
        return float(np.mean([float(run.batch_loss(batch)) for batch in _held_out()]))


@functools.lru_cache(maxsize=16)
def _data(seed: int) -> list[Batch]:
    """Return the batches of a seed, the same for all faults and arms."""
    stream = torch.Generator().manual_seed(seed)
    return [WORLDS[0].draw(Data(), stream) for _ in range(STEPS)]


@functools.cache
def _held_out() -> list[Batch]:
    stream = torch.Generator().manual_seed(1)
    return [WORLDS[0].draw(Data(size=64), stream) for _ in range(16)]


def _set_rates(optimizer: optim.Optimizer, rates: Sequence[float], factor: float) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor


def measure(name: str, seed: int, arm: str) -> dict[str, Any]:
    """Train one run, and read in its journal what was done and said."""
    fault, onset = (FAULTS | CLEAN)[name], Onset(name, seed)
    with tempfile.TemporaryDirectory() as folder:
        try:
            final = train(fault, onset, seed, arm, folder)
        except TrimtabError as error:
            return {"final": math.nan, "ended": type(error).__name__}
        if arm == "no guard":
            return {"final": final}
        events = read_journal(RunDirectory(Path(folder))).block.events
    undos = [e for e in events if e.kind == "undo"]
    # By ticks: after a restart the steps of the new guard begin at 0.
    said = [e for e in events if e.kind == "incident" and e.tick >= onset.step]
    audits = [e for e in events if e.kind == "resume audit" and e.facts.get("findings")]
    changes = [e for e in events if e.kind == SETTING_CHANGED]
    return {
        "final": final,
        "undos": [[e.step - onset.step, int(e.facts["updates_lost"])] for e in undos],
        "why": sorted({str(e.facts["why"]) for e in undos}),
        "discarded": sum(e.kind == "step discarded" for e in events),
        "refused": sum(e.kind == "harm not undone" for e in events),
        "said": bool(said or audits or changes),
        "incidents": [e.facts for e in said][:1],
    }


def publish_faults(seeds: int, folder: str | None) -> None:
    """Train every fault with every seed in all arms."""
    logging.getLogger("trimtab").setLevel(logging.CRITICAL)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as spare:
        cache = ResultCache(Path(folder or spare))
        rows = [_row(name, fault, seeds, cache) for name, fault in FAULTS.items()]
    header = (
        *("fault", "helped by", "no guard", "protect", "recover", f"in {BAR}"),
        *("discarded", "runs undone", "lost, median", "most", "reported"),
    )
    publish(
        TITLE,
        f"scripts/bench recover faults --seeds {seeds}",
        f"A small language model ({STEPS} steps, AdamW, clipped), {seeds} paired seeds a fault "
        f"from {FIRST_SEED} on, on which no threshold was chosen. Final loss minus that of the run "
        "without a fault, in nat: mean and upper 95 % bound. Bar: the bound of `recover` at most "
        f"{BAR} wherever an undo, a discard or time helps; median updates lost at most {MAX_LOST} "
        "(1 for what changes the state alone, F07, F13w, moments: not reached, since snapshots "
        "are 10 updates apart); where nothing helps, nothing is undone and it is reported. "
        "Discarded: steps in all runs. Reported: runs in `recover` with an incident or a finding "
        "of the resume audit since the onset, or an option of the optimizer whose change is in the "
        f"journal.\n\n{table(header, rows)}",
        _headlines(rows),
    )


def _headlines(rows: Sequence[Sequence[object]]) -> list[tuple[str, str, str]]:
    """Return how many faults are healed, and how many of the others are reported."""
    helped = [row[5] == "yes" for row in rows if row[5] != "-"]
    said = [str(row[10]).split(" of ") for row in rows if row[5] == "-"]
    reported = sum(int(count) for count, _ in said)
    runs = sum(int(total) for _, total in said)
    return [
        (f"kinds of faults that end within {BAR} nat", f"{sum(helped)} of {len(helped)}", "all"),
        ("runs that nothing helps, reported", f"{reported} of {runs}", "all"),
    ]


def _row(name: str, fault: Fault, seeds: int, cache: ResultCache) -> tuple[object, ...]:
    twin = "CleanFp16" if fault.in_fp16 else "Fault"
    differences: dict[str, list[float]] = {arm: [] for arm in ARMS}
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        clean = cache.get(f"{twin} {seed}", partial(measure, twin, seed, "no guard"))
        for arm in ARMS:
            outcome = cache.get(f"{name} {seed} {arm}", partial(measure, name, seed, arm))
            differences[arm].append(outcome["final"] - clean["final"])
        found.append(outcome)
    lost = [sum(k for _, k in outcome.get("undos", [])) for outcome in found]
    lost = [k for k in lost if k]
    bound = _bound(differences["recover"])
    is_met = "-" if fault.helped_by in ("nothing", "-") else "yes" if bound <= BAR else "NO"
    return (
        fault.title,
        fault.helped_by,
        *(_difference(differences[arm]) for arm in ARMS),
        is_met,
        sum(outcome.get("discarded", 0) for outcome in found),
        len(lost),
        f"{np.median(lost):.0f}" if lost else "",
        max(lost, default=""),
        f"{sum(bool(outcome.get('said')) for outcome in found)} of {seeds}",
    )


def _bound(differences: Sequence[float]) -> float:
    spread = float(np.std(differences, ddof=1)) if len(differences) > 1 else math.nan
    mean = float(np.mean(differences))
    return mean + T_95.get(len(differences), 2.0) * spread / math.sqrt(len(differences))


def _difference(differences: Sequence[float]) -> str:
    lost = sum(not math.isfinite(d) for d in differences)
    if lost:
        return f"{lost} of {len(differences)} not finite"
    return f"{np.mean(differences):+.4f}, below {_bound(differences):+.4f}"
