"""torchtitan's own entry point on the CPU: what it needs there, and a small config.

    python -m tests.kit.torchtitan.cpu RESULT.json FAULTS.json [flags of torchtitan]

torchtitan is made for CUDA. Each patch stands for one failure of 0.3.0 on the CPU with torch 2.13.
"""

import dataclasses
import hashlib
import importlib.abc
import importlib.machinery
import json
import os
import signal
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from trimtab.selftest.promises import READS, Counting


class _Anything(types.ModuleType):
    """A module in which every name is a decorator that changes nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def decorate(*args: Any, **kwargs: Any) -> Any:
            return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else decorate

        return decorate


class _WithoutTriton(importlib.abc.MetaPathFinder):
    """Lets the one file of torchtitan that needs triton be imported without it."""

    NAME = "torchtitan.distributed.minimal_async_ep.kernels"

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.loader is not None
        run = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            stubs = {name: _Anything(name) for name in ("triton", "triton.language")}
            stubs["triton"].language = stubs["triton.language"]  # type: ignore[attr-defined]
            sys.modules.update(stubs)
            try:
                run(module)
            finally:
                for stub in stubs:
                    del sys.modules[stub]

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def patch() -> None:
    sys.meta_path.insert(0, _WithoutTriton())
    torch._utils._get_available_device_type = lambda: "cpu"
    cpu: Any = torch.cpu
    cpu.get_device_name = lambda device=None: "cpu"
    cpu.get_device_properties = lambda device=None: types.SimpleNamespace(total_memory=1 << 34)
    cpu.reset_peak_memory_stats = cpu.empty_cache = lambda device=None: None
    cpu.memory_stats = lambda device=None: {}
    cpu.current_device = lambda: 0
    # gloo does not multiply before it adds.
    divide = FSDPModule.set_gradient_divide_factor

    def divide_after(self: FSDPModule, factor: float) -> None:
        divide(self, factor)
        self.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = divide_after  # type: ignore[method-assign]
    if not hasattr(dist, "set_timeout"):  # a newer torch has it
        dist.set_timeout = lambda timeout, group=None: None  # type: ignore[attr-defined]


def debug_cpu() -> Any:
    """torchtitan's debug model with two layers, and random tokens for data."""
    from torchtitan.components.dataloader import BaseDataLoader
    from torchtitan.components.tokenizer import BaseTokenizer
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    class Tokenizer(BaseTokenizer):  # type: ignore[misc]
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseTokenizer.Config):  # type: ignore[misc]
            pass

        def __init__(self, config: Any, **unused: Any) -> None:
            super().__init__()

        def encode(self, *args: Any, **kwargs: Any) -> list[int]:
            return []

        def decode(self, *args: Any, **kwargs: Any) -> str:
            return ""

        def get_vocab_size(self) -> int:
            return 2048

    class Loader(BaseDataLoader):  # type: ignore[misc]
        @dataclasses.dataclass(kw_only=True, slots=True)
        class Config(BaseDataLoader.Config):  # type: ignore[misc]
            pass

        def __init__(self, config: Any, *, dp_rank: int, seq_len: int, **options: Any) -> None:
            self._shape = (options["local_batch_size"], seq_len + 1)
            self._generator = torch.Generator().manual_seed(dp_rank)
            self._count = 0

        def __iter__(self) -> Iterator[Any]:
            while True:
                ids = self._draw()
                labels = ids[:, 1:].clone()
                labels[:, : int(ids[0, 0]) % 8] = -100  # a ragged mask
                yield {"input": ids[:, :-1]}, labels

        def _draw(self) -> torch.Tensor:
            self._count += 1
            return torch.randint(0, 64, self._shape, generator=self._generator)

        def state_dict(self) -> dict[str, Any]:
            return {"count": self._count}

        def load_state_dict(self, state: Any) -> None:
            for _ in range(state["count"]):
                self._draw()

    config = llama3_debugmodel()
    model = config.model_spec.model
    model.layers = model.layers[:2]
    for layer in model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.tokenizer = Tokenizer.Config()
    config.dataloader = Loader.Config()
    config.training.local_batch_size = 2
    config.training.seq_len = 32
    config.training.disable_cuda_graphs = True
    config.checkpoint.enable = False
    config.validator.enable = False
    config.debug.seed = 3
    config.metrics.log_freq = 1
    return config


def plant(faults: dict[str, int]) -> list[dict[str, Any]]:
    """Faults by the step at which they happen; returns what is known after each step."""
    from torchtitan.trainer import Trainer

    body, train_step = Trainer._forward_backward_body, Trainer.train_step
    history: list[dict[str, Any]] = []

    def planted(self: Any, *arguments: Any) -> Any:
        loss = body(self, *arguments)
        if self.step == faults.get("nan"):
            next(self.model_parts[0].parameters()).grad.mul_(torch.nan)
            return loss * torch.nan
        return loss

    def stepped(self: Any, data_iterator: Any) -> None:
        counting = Counting()
        with counting:
            train_step(self, data_iterator)
        reads = sum(counting.counts[name] for name in READS)
        history.append({"step": self.step, "reads": reads, **digests(self)})
        if self.step == faults.get("infinite"):
            del faults["infinite"]
            weight = list(self.model_parts[0].parameters())[-1].detach()
            local = weight.to_local() if hasattr(weight, "to_local") else weight
            local.numpy()[1, 1] = np.inf  # in memory, past torch's counters
        if self.step == faults.get("kill"):
            os.kill(os.getpid(), signal.SIGKILL)

    Trainer._forward_backward_body, Trainer.train_step = planted, stepped
    return history


def digests(trainer: Any) -> dict[str, str]:
    """Checksums of the weights and of the optimizer state on this rank."""
    weights = [p for part in trainer.model_parts for p in part.parameters()]
    states = [
        value
        for optimizer in trainer.optimizers.optimizers
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value)
    ]
    return {"weights": _sha(weights), "moments": _sha(states)}


def _sha(tensors: list[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        digest.update(local.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    result, faults, *flags = sys.argv[1:]
    patch()
    from torchtitan.train import main as train
    from torchtitan.trainer import Trainer

    history = plant(json.loads(faults))
    found: dict[str, Any] = {"steps": history}
    close = Trainer.close

    def noting(self: Any) -> None:
        close(self)
        found.update(step=self.step, tokens=self.ntokens_seen)

    Trainer.close = noting
    sys.argv = ["train", "--module", __spec__.name, "--config", "debug_cpu", *flags]
    try:
        train()
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    rank = os.environ.get("RANK", "0")
    Path(f"{result}.{rank}").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
