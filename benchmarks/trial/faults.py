"""What goes wrong in a run of the trial, and runs in which nothing does."""

from collections.abc import Callable

import numpy as np

from benchmarks.recover.worlds import Change, Run
from benchmarks.trial.purposes import scale_option, set_dropout, set_options

FAULTS: dict[str, Change] = {}

HEALTHY: dict[str, Change] = {
    "as planned": lambda run, step: None,
    "constant rate": lambda run, step: set_options(
        run, lr=run.memory["rate"] * min((step + 1) / 20, 1.0)
    ),
    "batches of a quarter": lambda run, step: setattr(run.data, "size", 2),
    "dropout": lambda run, step: set_dropout(run, 0.2),
}


def _during(run: Run, step: int, length: int) -> bool:
    onset = run.memory["onset"]
    return bool(onset <= step < onset + length)


def _scaled(option: str, factor: float, length: int) -> Change:
    def change(run: Run, step: int) -> None:
        scale_option(run, option, factor if _during(run, step, length) else 1.0)

    return change


_RATES = ((10, 5), (30, 12), (100, 5), (1000, 3))
for _factor, _length in _RATES:
    FAULTS[f"LR x{_factor} for {_length}"] = _scaled("lr", _factor, _length)
FAULTS["LR x8 for good"] = _scaled("lr", 8, 10_000)
FAULTS["LR x30 for good"] = _scaled("lr", 30, 10_000)
FAULTS["decay x1e4 for 5"] = _scaled("weight_decay", 1e4, 5)
FAULTS["decay x1e4 for 12"] = _scaled("weight_decay", 1e4, 12)


def _gradient(factor: float, length: int) -> Change:
    def change(run: Run, step: int) -> None:
        run.memory["gradient factor"] = factor if _during(run, step, length) else 1.0

    return change


FAULTS["gradient negated for 20"] = _gradient(-1.0, 20)
FAULTS["gradient x1000 past the clip"] = _gradient(1000.0, 1)


def _random_labels(length: int) -> Change:
    def change(run: Run, step: int) -> None:
        run.data.noise = 1.0 if _during(run, step, length) else 0.0

    return change


FAULTS["random labels for 20"] = _random_labels(20)
FAULTS["random labels for 50"] = _random_labels(50)


def _momentum(betas: tuple[float, float], length: int) -> Change:
    def change(run: Run, step: int) -> None:
        for group in run.optimizer.param_groups:
            name = "betas" if "betas" in group else "momentum"
            kept = run.memory.setdefault(name, group[name])
            other = betas if name == "betas" else betas[0]
            group[name] = other if _during(run, step, length) else kept

    return change


FAULTS["beta2 0.5, beta1 0 for 20"] = _momentum((0.0, 0.5), 20)
FAULTS["beta1 0.995 for 30"] = _momentum((0.995, 0.999), 30)


# What faulty memory or a faulty kernel writes, torch does not count.


def _at_onset(name: str) -> Callable[[Callable[[Run, np.random.Generator], None]], None]:
    def register(write: Callable[[Run, np.random.Generator], None]) -> None:
        def change(run: Run, step: int) -> None:
            if _during(run, step, 1):
                write(run, np.random.default_rng(step))

        FAULTS[name] = change

    return register


@_at_onset("second moments zeroed")
def _forgets(run: Run, dice: np.random.Generator) -> None:
    for state in run.optimizer.state.values():
        if "exp_avg_sq" in state:
            state["exp_avg_sq"].numpy()[...] = 0


def _written(name: str, write: Callable[[str, np.ndarray, np.random.Generator], None]) -> None:
    """Register what is written into each weight, by the part of the model that it is in."""

    @_at_onset(name)
    def change(run: Run, dice: np.random.Generator) -> None:
        for where in ("head", "embed", "blocks"):
            for parameter in getattr(run.model, where).parameters():
                write(where, parameter.detach().numpy(), dice)


def _negate_head(where: str, values: np.ndarray, dice: np.random.Generator) -> None:
    values *= -1 if where == "head" else 1


def _zero_first(where: str, values: np.ndarray, dice: np.random.Generator) -> None:
    values *= 0 if where == "embed" else 1


def _add_noise(where: str, values: np.ndarray, dice: np.random.Generator) -> None:
    values += (0.5 * values.std() * dice.standard_normal(values.shape)).astype(values.dtype)


_written("head negated", _negate_head)
_written("first layer zeroed", _zero_first)
_written("noise of half a deviation in all weights", _add_noise)


def _stale(every: int) -> Change:
    def change(run: Run, step: int) -> None:
        if step == 50:
            run.memory["stale"] = [p.detach().clone() for p in run.model.parameters()]
        if _during(run, step, 1):
            old = run.memory["stale"]
            for parameter, kept in list(zip(run.model.parameters(), old, strict=True))[::every]:
                parameter.detach().numpy()[...] = kept.numpy()

    return change


FAULTS["half of the weights of step 50"] = _stale(2)
FAULTS["all weights of step 50"] = _stale(1)


@_at_onset("weights shuffled")
def _shuffled(run: Run, dice: np.random.Generator) -> None:
    dice.shuffle(run.model.head.weight.detach().numpy())
