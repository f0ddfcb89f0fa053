"""ShardWeights: adds up numbers that belong to parameters, by role and layer, for every layout."""

from collections import OrderedDict
from collections.abc import Sequence

import torch

from trimtab.live.measure.roles import Roles

_CACHE_SIZE = 8
"""Sets of parameters whose places are kept on the device: where layers are dropped at random, every
step has another set."""


class ShardWeights:
    """Adds up numbers that belong to parameters, each named by its parameter's index."""

    def __init__(self, copies: Sequence[float], roles: Roles, device: torch.device) -> None:
        self.device = device
        self.num_roles, self.num_layers = len(roles.names), len(roles.layers)
        self._role = torch.tensor(roles.index, dtype=torch.int64, device=device)
        self._layer = torch.tensor(roles.layer_index, dtype=torch.int64, device=device)
        # What several ranks hold alike must count once after the ranks have been added up.
        weights = [1.0 / number for number in copies]
        self._weight = torch.tensor(weights, dtype=torch.float32, device=device)
        self._places: OrderedDict[tuple[int, ...], torch.Tensor] = OrderedDict()

    def weights(self, indices: Sequence[int]) -> torch.Tensor:
        """What this rank's part of each parameter counts in a sum over ranks."""
        return self._weight[self._place(indices)]

    def by_role(self, indices: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """One sum for each role; of several rows of values, a row of sums for each."""
        return self._gather(self._role[self._place(indices)], values, self.num_roles)

    def by_layer(self, indices: Sequence[int], values: torch.Tensor) -> torch.Tensor:
        """One sum for each layer; what is in no layer is left out."""
        return self._gather(self._layer[self._place(indices)], values, self.num_layers + 1)[:-1]

    def _gather(self, index: torch.Tensor, values: torch.Tensor, size: int) -> torch.Tensor:
        # Not a product with a 0/1 matrix: 0 x NaN would spread one bad tensor over all sums.
        shape = (*values.shape[:-1], size)
        sums = torch.zeros(shape, dtype=torch.float32, device=self.device)
        return sums.index_add_(-1, index, values)

    def _place(self, indices: Sequence[int]) -> torch.Tensor:
        """The indices on the device; the last few sets are kept there."""
        key = tuple(indices)
        if key not in self._places:
            self._places[key] = torch.tensor(key, dtype=torch.int64, device=self.device)
            if len(self._places) > _CACHE_SIZE:
                self._places.popitem(last=False)
        self._places.move_to_end(key)
        return self._places[key]
