"""The role of each parameter (embedding, norm, attention, MLP, head) and its layer, by its name."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch

_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:_orig_mod|module|_checkpoint_wrapped_module|_fsdp_wrapped_module)\."
)

# The first match decides, so the narrow words come first: `norm_attention` is a norm.
_ROLES = (
    ("norm", re.compile(r"norm|(?:^|\.)ln_?[a-z0-9]*\.")),
    ("head", re.compile(r"lm_head|(?:^|\.)(?:head|output|unembed)\.")),
    ("embedding", re.compile(r"emb|wte|wpe|tok_")),
    ("attention", re.compile(r"att|qkv|[qkvo]_proj|query|key|value")),
    ("mlp", re.compile(r"mlp|ffn|feed_forward|fc|up_proj|down_proj|gate|expert|(?:^|\.)w[123]\.")),
)
_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The names of roles and layers, and for each parameter the index of its own."""

    names: tuple[str, ...]
    index: tuple[int, ...]
    layers: tuple[str, ...]
    layer_index: tuple[int, ...]
    """The index of "no layer" is `len(layers)`."""


def plain_name(name: str) -> str:
    """A parameter's name without what DDP, FSDP, compile and checkpointing put in front."""
    return _WRAPPERS.sub("", name)


def role_of(name: str) -> str:
    """The role of a parameter, from its name."""
    lowered = plain_name(name).lower()
    return next((role for role, pattern in _ROLES if pattern.search(lowered)), "other")


def assign_roles(model: torch.nn.Module, parameters: Iterable[torch.Tensor]) -> Roles:
    """The roles of these parameters of a model."""
    names: dict[torch.Tensor, str] = {p: name for name, p in model.named_parameters()}
    own = [names.get(parameter, "") for parameter in parameters]
    roles = [role_of(name) for name in own]
    found = [_LAYER.search(plain_name(name)) for name in own]
    numbers = [int(match[1]) if match else None for match in found]
    role_names = tuple(dict.fromkeys(roles))
    layers = sorted({number for number in numbers if number is not None})
    return Roles(
        names=role_names,
        index=tuple(role_names.index(role) for role in roles),
        layers=tuple(str(layer) for layer in layers),
        layer_index=tuple(
            len(layers) if number is None else layers.index(number) for number in numbers
        ),
    )
