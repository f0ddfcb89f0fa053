"""torchtitan's own Trainer with the override flag, on 1 and 2 ranks.

torchtitan is no dependency of the tests: its packages clash with others. Run these in an
environment of its own: pip install torch==2.13.0 torchtitan==0.3.0 pytest pytest-timeout.
"""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest
from tests.kit.tiny import journal_of
from tests.kit.torchtitan.launching import launch

from trimtab.state.checkpoints.run_checkpoints import Checkpoints

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # up to four processes that import torchtitan, on two cores
    pytest.mark.skipif(
        importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed"
    ),
]

RANKS = pytest.mark.parametrize("ranks", [1, 2])


def logged(folder: Path) -> tuple[list[float], list[float]]:
    """Losses and norms in torchtitan's own log, of the first rank."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", (folder / "log").read_text())
    rows = re.findall(r"step:\s+\d+\s+loss:\s+(\S+)\s+grad_norm:\s+(\S+)", text)
    return [float(loss) for loss, _ in rows], [float(norm) for _, norm in rows]


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 2), (2, 1)])
def test_observing_keeps_the_bits_and_sees_what_torchtitan_logs(
    ranks: int, accumulate: int, tmp_path: Path
) -> None:
    flags = ["--training.global_batch_size", str(2 * ranks * accumulate)]
    bare = launch(tmp_path / "bare", None, *flags, ranks=ranks)
    seen = launch(tmp_path / "seen", "observe", *flags, ranks=ranks)
    for alone, watched in zip(bare, seen, strict=True):
        for one, other in zip(alone["steps"], watched["steps"], strict=True):
            assert {**one, "reads": 0} == {**other, "reads": 0}  # step, weights and moments
            assert other["reads"] <= one["reads"]
    losses, norms = logged(tmp_path / "bare")
    block = journal_of(tmp_path / "seen")
    assert block.step.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(block.column("loss").values, losses, atol=2e-5)
    np.testing.assert_allclose(block.column("grad_norm").values, norms, atol=1e-4)


def test_observing_a_nan_step_torchtitan_ends_the_run_and_the_journal_has_it(
    tmp_path: Path,
) -> None:
    (one,) = launch(tmp_path / "run", "observe", faults={"nan": 3})
    assert "Loss is not finite" in one["error"]
    assert "ended (raised RuntimeError)" in (tmp_path / "run" / "log").read_text()
    losses = journal_of(tmp_path / "run").column("loss").values
    assert np.isnan(losses).tolist() == [False, False, True]


@RANKS
def test_protecting_discards_a_nan_step_and_torchtitan_goes_on(ranks: int, tmp_path: Path) -> None:
    for one in launch(tmp_path / "protected", "protect", ranks=ranks, faults={"nan": 3}):
        assert "error" not in one
        before, after = one["steps"][1], one["steps"][2]
        assert (before["weights"], before["moments"]) == (after["weights"], after["moments"])
        assert one["steps"][3]["weights"] != after["weights"]
        assert one["step"] == 6


@RANKS
def test_an_infinite_weight_is_undone_and_torchtitan_goes_on(ranks: int, tmp_path: Path) -> None:
    protected = launch(tmp_path / "protected", "protect", ranks=ranks, steps=20)
    healthy = launch(tmp_path / "healthy", "recover", ranks=ranks, steps=20)
    harmed = launch(tmp_path / "harmed", "recover", ranks=ranks, steps=20, faults={"infinite": 13})
    for one, other, third in zip(protected, healthy, harmed, strict=True):
        for name in ("weights", "moments"):
            assert one["steps"][-1][name] == other["steps"][-1][name]
        assert (one["step"], one["tokens"]) == (third["step"], third["tokens"])
    undone = [e for e in journal_of(tmp_path / "harmed").events if e.kind == "undo"]
    assert len(undone) == 1
    assert undone[0].facts["updates_lost"] <= 12


@RANKS
def test_a_killed_run_goes_on_from_the_last_good_checkpoint(ranks: int, tmp_path: Path) -> None:
    saves = ["--checkpoint.enable", "--checkpoint.interval", "5"]
    straight = launch(tmp_path / "straight", "recover", *saves, ranks=ranks, steps=25)
    launch(tmp_path / "killed", "recover", *saves, ranks=ranks, steps=25, faults={"kill": 17})
    entries = Checkpoints(run_dir=tmp_path / "killed").entries
    assert [entry.step for entry in entries if not entry.in_doubt] == [6, 11, 16]
    again = launch(tmp_path / "killed", "recover", *saves, ranks=ranks, steps=25)
    for one, other in zip(straight, again, strict=True):
        for name in ("weights", "moments"):
            assert one["steps"][-1][name] == other["steps"][-1][name]
        assert other["steps"][0]["step"] == 16
    block = journal_of(tmp_path / "killed")
    last = dict(zip(block.step.tolist(), block.data_position.tolist(), strict=True))
    assert last == {step: step - 1 for step in range(1, 26)}
