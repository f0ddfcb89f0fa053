"""Shares: adds up numbers that belong to parameters, by role and layer, right for every layout."""

from collections.abc import Sequence

import torch

from trimtab.live.measure.roles import Roles
from trimtab.live.ranks.shards import local, num_copies


class Shares:
    """Adds up numbers that belong to parameters, each named by its parameter's index."""

    def __init__(self, parameters: Sequence[torch.Tensor], roles: Roles) -> None:
        self.device = local(parameters[0]).device
        self.num_roles, self.num_layers = len(roles.names), len(roles.layers)
        self._role = torch.tensor(roles.index, device=self.device)
        self._layer = torch.tensor(roles.layer_index, device=self.device)
        # What several ranks hold alike must count once after the ranks have been added up.
        shares = [1.0 / num_copies(parameter) for parameter in parameters]
        self._share = torch.tensor(shares, device=self.device)
        self._index: dict[tuple[int, ...], torch.Tensor] = {}

    def shares(self, indices: Sequence[int]) -> torch.Tensor:
        """What this rank's part of each parameter counts in a sum over ranks."""
        return self._share[self._place(indices)]

    def by_role(self, indices: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """One sum for each role; of several rows of values, a row of sums for each."""
        return self._gather(self._role[self._place(indices)], values, self.num_roles)

    def by_layer(self, indices: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """One sum for each layer; what is in no layer is left out."""
        return self._gather(self._layer[self._place(indices)], values, self.num_layers + 1)[:-1]

    def _gather(self, index: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
        # Not a product with a 0/1 matrix: 0 x NaN would spread one bad tensor over all sums.
        sums = torch.zeros(*values.shape[:-1], size, device=self.device)
        return sums.index_add_(-1, index, values)

    def _place(self, indices: Sequence[int]) -> torch.Tensor:
        """The indices on the device; the few sets that occur are sent there once."""
        key = tuple(indices)
        if key not in self._index:
            self._index[key] = torch.tensor(key, dtype=torch.long, device=self.device)
        return self._index[key]
