"""Setups: `module:function` of the command, and what such a function returns."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trimtab.checks.objects.inputs import Inputs
from trimtab.core.errors import ConfigError

NAMES = tuple(inspect.signature(Inputs).parameters)
"""What a setup may hold: the arguments of `trimtab.preflight`."""

Setup = dict[str, Any]


def find_setup(name: str) -> Callable[..., Any]:
    """The function of `module:function`; the folder of the call is searched first."""
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise ConfigError(f"{name!r} is not module:function, such as train:setup")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.partition(".")[0] and error.name != module_name:
            raise  # a package that the user's module needs
        raise ConfigError(
            f"no module {module_name!r} here or among the installed ones; run the command in its "
            "folder, or install it"
        ) from None
    finally:
        sys.path.pop(0)
    found = getattr(module, function_name, None)
    if not callable(found):
        raise ConfigError(
            f"module {module_name!r} has no function {function_name!r}; give module:function"
        )
    return found  # type: ignore[no-any-return]


def call_setup(make: Callable[..., Any], *arguments: int) -> Any:
    """What the function returns; raises ConfigError if it takes other arguments, or fails."""
    name = getattr(make, "__name__", "the function")
    try:
        inspect.signature(make).bind(*arguments)
    except TypeError:
        how = "called with the width, as with --widths" if arguments else "called without arguments"
        raise ConfigError(
            f"{name}{inspect.signature(make)} cannot be {how}; give a function that can"
        ) from None
    except ValueError:  # a callable without a signature
        pass
    try:
        return make(*arguments)
    except Exception as error:
        raise ConfigError(
            f"{name} raised {type(error).__name__}: {error}; call it by itself to see where"
        ) from error


def as_setup(given: Any) -> Setup:
    """What a function returned, as arguments of `trimtab.preflight`."""
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"the function returns a {type(given).__name__}; it must return a dict with model, "
            f"optimizer and any of {', '.join(NAMES[2:])}"
        )
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise ConfigError(f"unknown: {', '.join(unknown)}; a setup has {', '.join(NAMES)}")
    missing = [name for name in ("model", "optimizer") if name not in given]
    if missing:
        raise ConfigError(f"the function returns no {' and no '.join(missing)}; add it to its dict")
    return dict(given)
