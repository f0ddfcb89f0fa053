"""The model on torch's engines: compile, half precision, checkpointing, FSDP2, no host reads."""

import tempfile
from itertools import product
from pathlib import Path

import pytest
from tests.kit.cases import some_of

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("torchdata")

import torch
import torch.distributed as dist
from tests.lab.models import TINY, gradients, make, rows
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import OptimizerConfig, make_optimizer
from trimtab.lab.model.sizes import ModelConfig

RICH = ModelConfig(
    vocab_size=512,
    width=64,
    layers=2,
    heads=4,
    tied_head=False,
    qk_norm=True,
    embedding_norm=True,
    z_loss=1e-4,
    mup_base_width=32,
)
"""Every option that may be on at the same time."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "measure"), some_of(product([TINY, RICH], [False, True]), (RICH, True))
)
def test_the_whole_model_compiles_and_equals_eager(config: ModelConfig, measure: bool) -> None:
    torch._dynamo.reset()
    model = make(config)
    model.measure = measure
    expected = model(*rows())
    eager = gradients(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    model.zero_grad()
    output = compiled(*rows())
    output.loss.backward()
    torch.testing.assert_close(output, expected)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, eager[name])


@pytest.mark.slow
def test_checkpointing_gives_the_same_gradients_eager_and_compiled() -> None:
    expected = gradients(make())
    model = make(checkpoint_activations=True)
    found = gradients(model)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    torch._dynamo.reset()
    model.zero_grad()
    model.measure = True
    torch.compile(model, fullgraph=True, backend="aot_eager")(*rows()).loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name])


@pytest.mark.parametrize("config", [TINY, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_trains_near_fp32(config: ModelConfig, dtype: torch.dtype) -> None:
    model = make(config)
    model.measure = True
    exact = model(*rows())
    with torch.autocast("cpu", dtype=dtype):
        output = model(*rows())
    assert output.loss.dtype is torch.float32
    assert output.logits.dtype is dtype
    assert output.loss.item() == pytest.approx(exact.loss.item(), abs=0.02)
    torch.testing.assert_close(
        output.signals.max_attention_logit,
        exact.signals.max_attention_logit,
        rtol=0.05,
        atol=0.01,
    )
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    optimizer = make_optimizer(model, OptimizerConfig(lr=1e-3))
    scaler.scale(output.loss).backward()
    scaler.step(optimizer)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_in_half_precision_work_too(dtype: torch.dtype) -> None:
    model = make(RICH).to(dtype)
    output = model(*rows())
    output.loss.backward()
    assert output.loss.dtype is torch.float32
    assert output.loss.item() == pytest.approx(make(RICH)(*rows()).loss.item(), abs=0.02)
    assert all(p.grad is not None and p.grad.dtype is dtype for p in model.parameters())


def test_a_measured_step_never_reads_the_device() -> None:
    # Any read of a value on the meta device raises.
    with torch.device("meta"):
        model = Gpt(RICH)
        tokens = torch.zeros(2, 8, dtype=torch.int64)
    model.measure = True
    model(tokens, tokens).loss.backward()


def _train_sharded(rank: int, world_size: int, folder: str) -> None:
    torch.set_num_threads(1)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world_size
    )
    mesh = init_device_mesh("cpu", (world_size,))
    for name, config in (("plain", TINY), ("rich", RICH)):
        with torch.device("meta"):
            model = Gpt(config)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        model.to_empty(device="cpu")
        model.init_weights(torch.Generator().manual_seed(0))
        model.measure = True
        state = {key: value.full_tensor() for key, value in model.state_dict().items()}
        optimizer = make_optimizer(model, OptimizerConfig(lr=1e-2))
        losses = []
        tokens, targets = (part[rank : rank + 1] for part in rows())
        for _ in range(3):
            loss = model(tokens, targets).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            dist.all_reduce(loss := loss.detach().clone())
            losses.append(loss / world_size)
        if rank == 0:
            torch.save((state, torch.stack(losses)), f"{folder}/{name}.pt")
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_two_sharded_ranks_start_and_train_like_one_process() -> None:
    import torch.distributed.fsdp  # imported before the fork, for both ranks

    with tempfile.TemporaryDirectory() as folder:
        start_processes(_train_sharded, (2, folder), nprocs=2, start_method="fork")
        for name, config in (("plain", TINY), ("rich", RICH)):
            state, losses = torch.load(Path(folder, f"{name}.pt"), weights_only=True)
            model = make(config)
            for key, value in model.state_dict().items():
                assert torch.equal(value, state[key]), key
            torch.testing.assert_close(losses, _losses_of_three_steps(model))


def _losses_of_three_steps(model: Gpt) -> Tensor:
    optimizer = make_optimizer(model, OptimizerConfig(lr=1e-2))
    losses = []
    for _ in range(3):
        loss = model(*rows()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)
