"""The pages of the docs that a benchmark writes are those of its published figures."""

from benchmarks.scale import page as scale_page


def test_the_figures_on_scale_are_those_that_were_measured() -> None:
    assert scale_page.PAGE.read_text(encoding="utf-8") == scale_page.rendered()
