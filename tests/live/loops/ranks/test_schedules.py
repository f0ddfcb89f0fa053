"""Random schedules on four ranks: nobody waits for ever, and all ranks decide the same.

`SCHEDULE_SEEDS` sets how many; `scripts/bench recover schedules` runs 500. A failing schedule is
run again by its seed.
"""

import os
from pathlib import Path

import pytest
from tests.kit.rank_schedules import check_agreement

SEEDS = int(os.environ.get("SCHEDULE_SEEDS", "3"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_ranks_agree_whatever_happens(seed: int, tmp_path: Path) -> None:
    check_agreement(seed, tmp_path)
