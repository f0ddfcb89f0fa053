"""RemedyHistory: what was done about which trouble, what it cost, and whether it came back."""

from dataclasses import dataclass

from trimtab.decide.ladder import WINDOW_STEPS
from trimtab.decide.situation import ROLLBACKS, Act, Situation

SAME_PLACE_STEPS = 200
"""Trouble of the same family within this many steps of a remedy's onset has come back. Source: the
longest window of the textbook."""


@dataclass(slots=True, kw_only=True)
class Remedy:
    """One act and what it was for."""

    situation: Situation
    act: Act
    target: int | None
    num_skipped: int
    boundary: int
    """When it was ordered, counted in boundaries; steps go back."""
    check_at: int
    """The step at which it is checked."""
    is_checked: bool = False

    @property
    def depth(self) -> int:
        """Steps from the onset back to the snapshot."""
        return 0 if self.target is None else max(self.situation.onset - self.target, 0)


class RemedyHistory:
    """The remedies of a run."""

    def __init__(self, window_steps: int = WINDOW_STEPS) -> None:
        self._window_steps = window_steps
        self._remedies: list[Remedy] = []

    def add(self, remedy: Remedy) -> None:
        """Remember an act."""
        self._remedies.append(remedy)

    def add_relaunch(self, situation: Situation) -> None:
        """Remember what an earlier process ended for."""
        self._remedies.append(
            Remedy(
                situation=situation,
                act=Act.RELAUNCH,
                target=None,
                num_skipped=0,
                boundary=-self._window_steps,
                check_at=situation.onset,
                is_checked=True,
            )
        )

    def due(self, step: int) -> Remedy | None:
        """The remedy that is to be checked before this step."""
        last = self._remedies[-1] if self._remedies else None
        return last if last is not None and not last.is_checked and step >= last.check_at else None

    def of(self, situation: Situation) -> list[Remedy]:
        """What was tried for the same family of symptoms at the same place."""
        return [
            remedy
            for remedy in self._remedies
            if remedy.situation.family is situation.family
            and abs(remedy.situation.onset - situation.onset) <= SAME_PLACE_STEPS
        ]

    def spent(self, boundary: int) -> tuple[int, int]:
        """Rollbacks and skipped batches within the window of the budget."""
        recent = [r for r in self._remedies if boundary - r.boundary < self._window_steps]
        rollbacks = sum(remedy.act in ROLLBACKS for remedy in recent)
        return rollbacks, sum(remedy.num_skipped for remedy in recent)

    @property
    def num_relaunches(self) -> int:
        """How often the run was ended for a relaunch."""
        return sum(remedy.act is Act.RELAUNCH for remedy in self._remedies)

    @property
    def num_lr_reductions(self) -> int:
        """How often the rate was lowered."""
        return sum(remedy.act is Act.LOWER_LR for remedy in self._remedies)
