"""What the model computes, its size by name, and that shards and the meta device give the same."""

import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.lab.models import TINY, gradients, make, measured, rows
from torch import Tensor
from torch.multiprocessing.spawn import start_processes

from trimtab.core.errors import ConfigError
from trimtab.lab.model.gpt import Gpt
from trimtab.lab.model.optimizer import OptimizerConfig, make_optimizer
from trimtab.lab.model.sizes import SIZES, ModelConfig


def test_shapes_and_the_loss_of_an_untrained_model() -> None:
    output = make()(*rows())
    assert output.logits.shape == (2, 24, TINY.vocab_size)
    assert output.loss.shape == ()
    assert output.loss.item() == pytest.approx(math.log(TINY.vocab_size), abs=0.1)
    assert output.signals is None


@pytest.mark.parametrize("options", [{}, {"post_norm": True}, {"qk_norm": True}])
def test_the_future_does_not_change_the_past(options: dict[str, Any]) -> None:
    model = make(**options)
    tokens, targets = rows()
    other = tokens.clone()
    other[:, 10:] = (other[:, 10:] + 1) % TINY.vocab_size
    before, after = model(tokens, targets).logits, model(other, targets).logits
    torch.testing.assert_close(before[:, :10], after[:, :10])
    assert not torch.allclose(before[:, 10], after[:, 10])


def test_the_largest_attention_logit_equals_a_reference() -> None:
    model = make(init_std=0.3)
    seen: list[Tensor] = []
    for name, module in model.named_modules():
        if name.endswith("qkv"):
            module.register_forward_hook(lambda _m, _i, out: seen.append(out.double()))
    peaks = measured(model).max_attention_logit
    assert peaks.shape == (TINY.layers,)
    half = TINY.head_size // 2
    for peak, qkv in zip(peaks, seen, strict=True):
        # Rotary positions as complex numbers, one pair of positions at a time.
        query, key, _ = qkv.view(2, 24, 3, TINY.heads, TINY.head_size).unbind(2)
        turns = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
        largest = -math.inf
        for late in range(24):
            for early in range(late + 1):
                turn = torch.polar(torch.ones(half, dtype=torch.float64), (late - early) * turns)
                q = torch.complex(query[:, late, :, :half], query[:, late, :, half:]) * turn
                k = torch.complex(key[:, early, :, :half], key[:, early, :, half:])
                logits = (q * k.conj()).real.sum(-1) / math.sqrt(TINY.head_size)
                largest = max(largest, logits.max().item())
        assert peak.item() == pytest.approx(largest, rel=1e-5)


def test_log_z_and_token_losses_equal_references() -> None:
    model = make(init_std=0.3)
    model.measure = True
    tokens, targets = rows()
    targets = targets.clone()
    targets[0, 3] = -100
    output = model(tokens, targets)
    logits = output.logits.double()
    log_z = logits.exp().sum(-1).log()
    assert output.signals.max_log_z.item() == pytest.approx(log_z.abs().max().item(), rel=1e-5)
    wanted = logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    losses = (log_z - wanted) * (targets >= 0)
    torch.testing.assert_close(output.signals.token_losses.double(), losses, rtol=1e-5, atol=1e-5)
    assert output.loss.item() == pytest.approx(losses.sum().item() / 47, rel=1e-5)


def test_qk_norm_bounds_attention_logits() -> None:
    free, bound = make(init_std=1.0), make(init_std=1.0, qk_norm=True)
    limit = math.sqrt(TINY.head_size)
    assert measured(free).max_attention_logit.min() > 2 * limit
    assert measured(bound).max_attention_logit.max() <= limit * 1.0001


def test_measuring_does_not_change_the_trained_bits() -> None:
    model = make(z_loss=1e-4)
    before = gradients(model)
    model.measure = True
    after = gradients(model)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_model_from_the_meta_device_is_the_same() -> None:
    with torch.device("meta"):
        model = Gpt(TINY)
    assert all(parameter.is_meta for parameter in model.parameters())
    model.to_empty(device="cpu")
    model.init_weights(torch.Generator().manual_seed(0))
    direct = make().state_dict()
    assert all(torch.equal(value, direct[name]) for name, value in model.state_dict().items())


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
    with torch.device("meta"):
        model = Gpt(RICH)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cpu")
    model.init_weights(torch.Generator().manual_seed(0))
    model.measure = True
    state = {key: value.full_tensor() for key, value in model.state_dict().items()}
    losses = _losses_of_three_steps(model, slice(rank, rank + 1))
    dist.all_reduce(losses)
    if rank == 0:
        torch.save((state, losses / world_size), f"{folder}/trained.pt")
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_two_sharded_ranks_start_and_train_like_one_process() -> None:
    import torch.distributed.fsdp  # imported before the fork, for both ranks

    with tempfile.TemporaryDirectory() as folder:
        start_processes(_train_sharded, (2, folder), nprocs=2, start_method="fork")
        state, losses = torch.load(Path(folder, "trained.pt"), weights_only=True)
    model = make(RICH)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key]), key
    torch.testing.assert_close(losses, _losses_of_three_steps(model, slice(None)))


def _losses_of_three_steps(model: Gpt, mine: slice) -> Tensor:
    optimizer = make_optimizer(model, OptimizerConfig(lr=1e-2))
    tokens, targets = (part[mine] for part in rows())
    losses = []
    for _ in range(3):
        loss = model(tokens, targets).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses)


MEANT = {"0.15M": 150e3, "1M": 1e6, "3M": 3e6, "10M": 10e6, "x1": 50e6}


@pytest.mark.parametrize("name", list(MEANT))
def test_a_size_is_what_its_name_says(name: str) -> None:
    config = SIZES[name]
    with torch.device("meta"):
        model = Gpt(config)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert counted == config.parameters
    assert counted == pytest.approx(MEANT[name], rel=0.15)


def test_the_init_follows_the_width_only_where_the_classic_one_is_too_large() -> None:
    def std(width: int, **options: Any) -> float:
        return ModelConfig(vocab_size=512, layers=1, heads=1, width=width, **options).base_std

    assert std(64) == std(832) == 0.02
    assert std(14336) == pytest.approx(math.sqrt(1 / (3 * 14336)))  # BLOOM-176B: 0.0048
    assert std(14336, init_std=0.01) == 0.01


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"width": 30}, "even multiple of heads"),
        ({"layers": 0}, "layers must be at least 1"),
        ({"vocab_size": 0}, "vocab_size must be"),
        ({"z_loss": -1.0}, "z_loss must be"),
        ({"z_loss": math.nan}, "z_loss must be"),
        ({"init_std": 0.0}, "init_std must be positive"),
        ({"mup_base_width": 24}, "multiple of the head size 16"),
    ],
)
def test_an_impossible_shape_is_an_error(changed: dict[str, Any], message: str) -> None:
    shape: dict[str, Any] = {"vocab_size": 512, "width": 64, "layers": 2, "heads": 4}
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**(shape | changed))


def test_a_missing_package_is_reported_with_the_install_command() -> None:
    script = (
        "import sys\n"
        "sys.modules['tokenizers'] = None\n"  # any import of it now raises
        "import trimtab.lab.model.sizes\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "MissingExtra: the lab needs packages that are not installed: tokenizers" in run.stderr
    assert 'pip install -e ".[lab]"' in run.stderr
