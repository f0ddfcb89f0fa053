"""BufferKeeper: what a discarded forward pass wrote into buffers is taken back.

BatchNorm folds every batch into its running statistics while the forward pass runs, long before a
gate can decide. A NaN there stays for ever.
"""

import torch
from torch import nn

from trimtab.state.host_copy import local

MAX_BYTES = 64 * 2**20
"""Of the copies; the smallest buffers come first. Running statistics are far smaller."""


class BufferKeeper:
    """Copies of a model's buffers as of the last step that was applied."""

    def __init__(self, model: nn.Module) -> None:
        self._kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        room = MAX_BYTES
        buffers = [b for b in model.buffers() if isinstance(b, torch.Tensor)]
        for buffer in sorted(buffers, key=lambda b: b.numel() * b.element_size()):
            room -= buffer.numel() * buffer.element_size()
            if room < 0:
                break
            if not buffer.is_sparse and type(local(buffer)) in (torch.Tensor, nn.Buffer):
                self._kept.append((buffer, local(buffer).detach().clone()))
        self._versions = [buffer._version for buffer, _ in self._kept]
        # Fused kernels write running statistics without counting a version.
        silent = [m for m in model.modules() if getattr(m, "track_running_stats", False)]
        self._always = {id(buffer) for module in silent for buffer in module.buffers()}

    @torch.no_grad()
    def settle(self, is_discarded: torch.Tensor) -> None:
        """The step is decided: take back what it wrote, or keep it from now on."""
        for place, (buffer, copy) in enumerate(self._kept):
            if buffer._version == self._versions[place] and id(buffer) not in self._always:
                continue
            now = local(buffer)
            flag = is_discarded.to(now.device) > 0
            copy.copy_(torch.where(flag, copy, now))
            now.copy_(copy)
            self._versions[place] = buffer._version

    @torch.no_grad()
    def renew(self) -> None:
        """The model has returned to an earlier step: keep its buffers as they are now."""
        for place, (buffer, copy) in enumerate(self._kept):
            copy.copy_(local(buffer))
            self._versions[place] = buffer._version
