"""The contract of a detector."""

from typing import Any, Protocol

from trimtab.core.block import Block
from trimtab.core.findings import Finding


class Detector(Protocol):
    """Turns blocks into findings.

    How a run is cut into blocks never changes what is found: whatever a detector needs of the
    past it keeps itself, and `state_dict` holds all of it in JSON's terms.
    """

    name: str

    def feed(self, block: Block) -> list[Finding]:
        """Take the next records; return what was found among them, in order of tick."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that the detector remembers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Become the detector that `state_dict` described."""
        ...
