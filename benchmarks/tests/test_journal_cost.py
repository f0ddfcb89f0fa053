"""What the journal costs, with room for a busy machine; the benchmark has the figures."""

from pathlib import Path

from benchmarks.journal import reading_ratio, writing_cost


def test_a_step_costs_little(tmp_path: Path) -> None:
    # The bar is 40.
    assert min(writing_cost(tmp_path / str(trial), 10_000) for trial in range(3)) < 80


def test_reading_is_about_as_fast_as_numpy(tmp_path: Path) -> None:
    # The bar is 3.
    assert reading_ratio(tmp_path, 1_000_000, repeats=5).best < 8
