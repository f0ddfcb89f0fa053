"""Forward passes that leave no trace: the run goes on as if they had never been made.

Dropout draws random numbers, BatchNorm writes buffers, DDP and FSDP2 prepare for a backward pass,
trimtab's hooks measure activations. All of it is put back, also if the forward pass raises.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from trimtab.state.rng import get_random_state, set_random_state


@contextmanager
def traceless(model: nn.Module) -> Iterator[None]:
    """Run forward passes in training mode, with gradients enabled, and put everything back.

    Without gradients, what acts only in training would not be seen: a gate, a loss scale, code
    that asks `torch.is_grad_enabled()`.
    """
    random = get_random_state()
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    parallel = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
    syncs = [(m, m.require_backward_grad_sync, m.require_forward_param_sync) for m in parallel]
    try:
        if not model.training:
            model.train()
        for wrapper in parallel:  # no bucket is prepared, no buffer is sent
            wrapper.require_backward_grad_sync = wrapper.require_forward_param_sync = False
        with torch.enable_grad():
            yield
    finally:
        for wrapper, backward, forward in syncs:
            wrapper.require_backward_grad_sync = backward
            wrapper.require_forward_param_sync = forward
        for module, mode in modes:
            module.training = mode
        for module, name, buffer, copy in buffers:
            module._buffers[name] = buffer
            if buffer is not None and copy is not None:
                with torch.no_grad():
                    buffer.copy_(copy)
        for module in model.modules():
            if isinstance(module, FSDPModule):  # the last layers stay whole until a backward pass
                module.reshard()
        set_random_state(random)
