"""The page on what the gate does names its thresholds."""

from pathlib import Path

from trimtab.live.protect.rule import THRESHOLDS

PAGE = Path(__file__).parents[3] / "docs" / "protect.md"


def test_the_thresholds_are_those_of_the_rule() -> None:
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    gate = THRESHOLDS
    for sentence in (
        f"norm {gate.norm_ratio:.0f} times its median and {gate.norm_sigmas:.0f} sigmas above it",
        f"loss {gate.loss_sigmas:.0f} sigmas and {gate.loss_excess:.0%} above".replace("%", " %"),
        f"norm {gate.extreme_norm_ratio:.0f} times its median",
        f"more than {gate.max_consecutive_discards} steps in a row",
        f"a norm of exp({gate.norm_explained_by_loss} x) times its median",
        f"over the last {gate.window} steps",
        f"The first {gate.min_history_extreme} steps",
        f"| discarded | {gate.max_discards:.0f}, then one in",
        f"| {gate.max_scaled:.0f}, then one in",
        f"| {gate.max_extreme_scaled:.0f}, then one in",
    ):
        assert sentence in text, sentence
