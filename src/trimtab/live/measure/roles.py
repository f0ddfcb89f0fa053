"""The role of each parameter (embedding, norm, attention, MLP, head) and its layer, by its name."""

import re
from collections.abc import Iterable, Sequence
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
    """The names of roles and layers, and the index of each parameter's role and layer."""

    names: tuple[str, ...]
    index: tuple[int, ...]
    layers: tuple[str, ...]
    layer_index: tuple[int, ...]
    """The index of "no layer" is `len(layers)`."""


def plain_name(name: str) -> str:
    """A parameter's name without what DDP, FSDP, compile and checkpointing put in front."""
    return _WRAPPERS.sub("", name)


def role_of(name: str) -> str:
    lowered = plain_name(name).lower()
    return next((role for role, pattern in _ROLES if pattern.search(lowered)), "other")


def assign_roles(
    model: torch.nn.Module,
    parameters: Iterable[torch.Tensor],
    role_names: Sequence[str] | None = None,
    layers: Sequence[str] | None = None,
) -> Roles:
    """The roles of these parameters of a model.

    With names that are fixed already, what fits none of them counts as the last role and no layer.
    """
    names: dict[torch.Tensor, str] = {p: name for name, p in model.named_parameters()}
    found_names = [names.get(parameter, "") for parameter in parameters]
    roles = [role_of(name) for name in found_names]
    matches = [_LAYER.search(plain_name(name)) for name in found_names]
    numbers = [str(int(match[1])) if match else None for match in matches]
    if role_names is None:
        role_names = tuple(dict.fromkeys(roles))
    if layers is None:
        layers = sorted({number for number in numbers if number is not None}, key=int)
    last = len(role_names) - 1
    return Roles(
        names=tuple(role_names),
        index=tuple(role_names.index(r) if r in role_names else last for r in roles),
        layers=tuple(layers),
        layer_index=tuple(layers.index(n) if n in layers else len(layers) for n in numbers),
    )
