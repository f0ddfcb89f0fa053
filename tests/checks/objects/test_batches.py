"""Batches cut to a size that can be afforded, and the checks that only look at batches."""

import torch
from tests.kit.check_objects.architectures import text
from tests.kit.check_objects.faults import healthy

from trimtab.checks.catalogue import PLAN_RULES, object_rules
from trimtab.checks.objects.measure.loader import (
    batch_fingerprint,
    cut,
    row_fingerprints,
)
from trimtab.checks.objects.run import check


def only(name: str) -> set[str]:
    return {*object_rules(), *PLAN_RULES} - {name}


def test_text_is_cut_in_rows_and_length_and_images_in_rows_only() -> None:
    words = {"ids": torch.zeros(8, 100, dtype=torch.long)}
    assert cut(words, 4, 200)["ids"].shape == (4, 50)
    image = (torch.zeros(8, 3, 4, 4), torch.zeros(8, dtype=torch.long))
    assert [tuple(part.shape) for part in cut(image, 2, 16)] == [(2, 3, 4, 4), (2,)]
    ragged = (torch.zeros(2), torch.zeros(3))
    assert [len(part) for part in cut(ragged, 1, 16)] == [2, 3]


def test_fingerprints_are_equal_for_equal_batches_and_rows() -> None:
    one, other = text()[:2]
    assert batch_fingerprint(one) == batch_fingerprint(text()[0]) != batch_fingerprint(other)
    rows = list(row_fingerprints({"ids": torch.tensor([[1, 2], [3, 4], [1, 2]])}))
    assert rows[0] == rows[2] != rows[1]


def test_a_batch_with_ignored_targets_only_is_found() -> None:
    setup = healthy()
    for batch in setup["loader"]:
        batch["labels"][:, 2:] = -100
        batch["labels"][1:] = -100
    report = check(**setup, off=only("PF053"))
    assert report.ids == ("PF053",)
