"""Sums of squares of many tensors at once, in fp32, by role and layer, right for every layout."""

from collections.abc import Sequence

import torch

from trimtab.live.roles import Roles
from trimtab.live.shards import local, num_copies


class SquareSums:
    """Adds up squares of tensors that belong to parameters, each named by its parameter's index."""

    def __init__(self, parameters: Sequence[torch.Tensor], roles: Roles) -> None:
        self.device = local(parameters[0]).device
        self.num_roles, self.num_layers = len(roles.names), len(roles.layers)
        self._role = torch.tensor(roles.index, device=self.device)
        self._layer = torch.tensor(roles.layer_index, device=self.device)
        # What several ranks hold alike must count once after the ranks have been added up.
        shares = [1.0 / num_copies(parameter) for parameter in parameters]
        self._share = torch.tensor(shares, device=self.device)
        self._index: dict[tuple[int, ...], torch.Tensor] = {}

    def squares(self, indices: Sequence[int], tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The square of each tensor's norm, as this rank's share of the sum over ranks."""
        if not tensors:
            return torch.zeros(0, device=self.device)
        # fp32 whatever the tensors are: an fp16 norm of 3e5 would read as infinite.
        parts = [local(tensor) for tensor in tensors]
        norms = torch.stack(torch._foreach_norm(parts, 2.0, dtype=torch.float32))
        return norms.square() * self.shares(indices)

    def products(
        self, indices: Sequence[int], ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """The inner product of each pair, as this rank's share of the sum over ranks."""
        pairs = zip(ones, others, strict=True)
        dots = [torch.dot(one.reshape(-1), other.reshape(-1)) for one, other in pairs]
        return torch.stack(dots).float() * self.shares(indices)

    def shares(self, indices: Sequence[int]) -> torch.Tensor:
        """What this rank's part of each parameter counts in a sum over ranks."""
        return self._share[self._place(indices)]

    def by_role(self, indices: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """One sum for each role."""
        return self._gather(self._role[self._place(indices)], values, self.num_roles)

    def by_layer(self, indices: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """One sum for each layer; what is in no layer is left out."""
        return self._gather(self._layer[self._place(indices)], values, self.num_layers + 1)[:-1]

    def _gather(self, index: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
        # Not a product with a 0/1 matrix: 0 x NaN would spread one bad tensor over all sums.
        return torch.zeros(size, device=self.device).index_add_(0, index, values)

    def _place(self, indices: Sequence[int]) -> torch.Tensor:
        """The indices on the device; the few sets that occur are sent there once."""
        key = tuple(indices)
        if key not in self._index:
            self._index[key] = torch.tensor(key, dtype=torch.long, device=self.device)
        return self._index[key]
