"""Observations on settings: what differed from the snapshot that the run went back to.

They only speak for a cause. A rollback that held nothing says little: the setting may have changed
back, or a loader and not the optimizer may be at fault.
"""

from trimtab.explain.evidence.observation import Seen, observation

_SOURCE = "settings of the run and of its snapshot: compared, not guessed"


def _held(setting: str, held_settings: tuple[str, ...]) -> Seen | None:
    if setting not in held_settings:
        return None
    return Seen(True, f"{setting} differed from the snapshot's, and was held at its value")


@observation("Adam's epsilon was changed", source=_SOURCE)
def epsilon_changed(held_settings: tuple[str, ...]) -> Seen | None:
    """Was it held at the snapshot's value?"""
    return _held("eps", held_settings)


@observation("Adam's betas were changed", source=_SOURCE)
def betas_changed(held_settings: tuple[str, ...]) -> Seen | None:
    """Were they held at the snapshot's values?"""
    return _held("betas", held_settings)


@observation("The weight decay was changed", source=_SOURCE)
def decay_changed(held_settings: tuple[str, ...]) -> Seen | None:
    """Was it held at the snapshot's value?"""
    return _held("weight_decay", held_settings)


@observation("Parameters were excluded from training", source=_SOURCE)
def frozen_by_setting(held_settings: tuple[str, ...]) -> Seen | None:
    """Were they included again?"""
    return _held("requires_grad", held_settings)


@observation("The learning rate was changed out of schedule", source=_SOURCE)
def rate_changed(held_settings: tuple[str, ...]) -> Seen | None:
    """Was it held at the snapshot's value?"""
    return _held("lr", held_settings)
