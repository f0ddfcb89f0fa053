"""Observations on settings: what differed from the snapshot that the run went back to.

They only speak for a cause. A rollback that held nothing says little: the setting may have changed
back, or a loader and not the optimizer may be at fault.
"""

from trimtab.diagnose.evidence.observation import Observation, Seen, observation

_SOURCE = "settings of the run and of its snapshot: compared, not guessed"


def _held(setting: str, statement: str, name: str) -> Observation:
    def look(held_settings: tuple[str, ...]) -> Seen | None:
        if setting not in held_settings:
            return None
        return Seen(True, f"{setting} differed from the snapshot's, and was held at its value")

    look.__name__ = name
    look.__doc__ = statement
    return observation(statement, source=_SOURCE)(look)


epsilon_changed = _held("eps", "Adam's epsilon was changed", "epsilon_changed")
betas_changed = _held("betas", "Adam's betas were changed", "betas_changed")
decay_changed = _held("weight_decay", "The weight decay was changed", "decay_changed")
frozen_by_setting = _held(
    "requires_grad", "Parameters were excluded from training", "frozen_by_setting"
)
rate_changed = _held("lr", "The learning rate was changed out of schedule", "rate_changed")
