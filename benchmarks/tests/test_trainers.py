"""The tables of the trainers: a setting that fails is named, with its reason."""

from pathlib import Path

from benchmarks.trainers.compare import compare
from benchmarks.trainers.setting import Outcome, Plan, Setting
from benchmarks.trainers.table import body

SETTING = Setting(ranks=1, precision="fp32", accumulate=1)


def outcome(**changed: object) -> Outcome:
    values = {"bits": "a", "held": (), "num_steps": 16, "reads": 3} | changed
    return Outcome(**values)  # type: ignore[arg-type]


def healthy(folder: Path, setting: Setting, plan: Plan) -> list[Outcome]:
    held = (6,) if plan.has_nan else ()
    return [outcome(held=held)]


def test_a_trainer_that_does_everything_right() -> None:
    found = compare(healthy, SETTING)
    assert (found.observe, found.protect, found.recover, found.reads) == ("", "", "", "")


def test_each_failure_has_its_reason() -> None:
    def broken(folder: Path, setting: Setting, plan: Plan) -> list[Outcome]:
        if plan.mode == "observe":
            return [outcome(bits="b", reads=11)]
        if plan.mode == "protect":
            raise RuntimeError("clipping is refused")
        return [outcome()]

    found = compare(broken, SETTING)
    assert found.observe == "different bits"
    assert found.protect == "RuntimeError: clipping is refused"
    assert found.recover == "RuntimeError: clipping is refused"
    assert found.reads == "8 in 8 steps"


def test_the_table_counts_settings_and_lists_failures() -> None:
    row = {"trainer": "Lightning", "version": "lightning 2.6", "precision": "fp32"}
    fine = {"setting": "1 rank", "observe": "", "protect": "", "recover": "", "reads": ""}
    text = body([row | fine, row | fine | {"setting": "2 ranks", "protect": "it hangs"}])
    assert "| Lightning | lightning 2.6 | fp32 | 2 of 2 | 1 of 2 | 2 of 2 | 2 of 2 |" in text
    assert "- Lightning, lightning 2.6, 2 ranks: protect: it hangs" in text
