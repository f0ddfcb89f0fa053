"""Values: settings by name, read as the requested type, with the format's defaults."""

from collections.abc import Mapping
from typing import Any

from trimtab.core.errors import UnreadablePlan

_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


class Values:
    """Settings of one format; what is not set has the format's default, or is None."""

    def __init__(
        self, given: Mapping[str, Any], source: str, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.given = given
        self._source = source
        self._defaults = defaults or {}

    def __contains__(self, name: str) -> bool:
        return name in self.given

    def raw(self, name: str) -> Any:
        """The value as it was read."""
        return self.given.get(name, self._defaults.get(name))

    def number(self, name: str) -> float | None:
        """The value as a number; text such as 2_000 or 1e-4 is one."""
        value = self.raw(name)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return value
        try:
            return float(value)
        except (TypeError, ValueError):
            raise self._wrong(name, value, "a number") from None

    def whole(self, name: str) -> int | None:
        """The value as a whole number."""
        value = self.number(name)
        if value is None:
            return None
        try:
            return int(value)
        except (OverflowError, ValueError):  # infinite, or NaN
            raise self._wrong(name, value, "a whole number") from None

    def truth(self, name: str) -> bool | None:
        """The value as yes or no; a flag without a value is yes."""
        value = self.raw(name)
        if value is None or isinstance(value, bool):
            return value
        text = str(value).lower()
        if text in _TRUE or text == "":
            return True
        if text in _FALSE:
            return False
        raise self._wrong(name, value, "true or false")

    def text(self, name: str) -> str | None:
        """The value as text in lower case."""
        value = self.raw(name)
        return None if value is None else str(value).lower()

    def _wrong(self, name: str, value: Any, wanted: str) -> UnreadablePlan:
        return UnreadablePlan(f"{self._source}: {name} is {value!r}, which is not {wanted}")
