"""Several ranks: what only they can show, and that all of them make the same passes."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tests.kit.cases import some_of
from tests.kit.check_objects.architectures import text
from tests.kit.check_objects.faults import healthy
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from trimtab.checks.catalogue import PLAN_RULES, object_rules
from trimtab.checks.objects.run import check
from trimtab.lab.trainer.local_ranks import run_ranks

ONLY_RANKS = ({*object_rules(), *PLAN_RULES}) - {"PF052", "PF072"}


def find(rank: int, fault: str) -> tuple[str, ...]:
    setup = healthy()
    setup["loader"] = text(0 if fault == "same data" else rank)
    if fault == "few targets" and rank == 1:
        for batch in setup["loader"]:
            batch["labels"][:, 3:] = -100
        setup["model"].head.weight.data.mul_(5)
    return check(**setup, off=ONLY_RANKS).ids


@pytest.mark.parametrize(
    ("fault", "ids"), [("same data", ("PF072",)), ("few targets", ("PF052",)), ("none", ())]
)
def test_what_only_ranks_can_show_is_found_on_every_rank(fault: str, ids: tuple[str, ...]) -> None:
    assert run_ranks(find, 2, fault) == [ids, ids]


def over_all_targets(model: nn.Module, batch: Any) -> Tensor:
    """Return the sum over the mean number of targets of all ranks: a loss that communicates."""
    logits = model(batch["input_ids"])[:, :-1].flatten(0, 1)
    targets = batch["labels"][:, 1:].flatten()
    count = (targets != -100).sum().float()
    dist.all_reduce(count)
    total = F.cross_entropy(logits.float(), targets, reduction="sum")
    mean: Tensor = total / (count / dist.get_world_size())
    return mean


def under_ddp(rank: int, fault: str) -> tuple[dict[str, Any], bool]:
    """Check a model under DDP, with a loss that waits for the other ranks."""
    setup = healthy()
    rows = [tokens for batch in text() for tokens in batch["input_ids"]]
    data: Any = [{"input_ids": tokens, "labels": tokens} for tokens in rows]
    sampler: Any = DistributedSampler(data, rank=0 if fault == "same data" else rank)
    setup["loader"] = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(setup["model"])
    setup["model"] = model
    if fault != "one rank fails":  # the others would wait for it, as they would in training
        setup["loss"] = over_all_targets
    if fault == "one rank learns" and rank == 0:
        setup["loader"] = [{k: v[:, :1].expand(8, 16) for k, v in b.items()} for b in text()]
    if fault == "one rank fails" and rank == 1:
        setup["loader"] = [{"input_ids": batch["input_ids"]} for batch in text()]
    before = [p.detach().clone() for p in model.parameters()]
    report = check(**setup, off=["PF022", *PLAN_RULES])
    after = [p.detach() for p in model.parameters()]
    is_same = all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return report.to_dict(), is_same and not report.changed


FAULTS = ["none", "same data", "one rank learns"]


@pytest.mark.parametrize("fault", some_of(FAULTS, "one rank learns"))
def test_a_model_under_ddp_with_a_loss_that_communicates(fault: str) -> None:
    for report, is_untouched in run_ranks(under_ddp, 2, fault):
        assert is_untouched
        assert not [part for part in report["not_checked"] if part["broken"]]
        assert ("PF072" in {part["id"] for part in report["findings"]}) == (fault == "same data")
        assert "PF050" in {part["id"] for part in report["passed"]}


def test_a_rank_that_fails_leaves_no_other_waiting() -> None:
    (first, _), (second, is_untouched) = run_ranks(under_ddp, 2, "one rank fails")
    assert is_untouched
    assert "PF001" in {part["id"] for part in second["findings"]}
    reasons = {part["id"]: part["reason"] for part in first["not_checked"]}
    assert reasons["PF050"] == "the first step failed on rank 1"
