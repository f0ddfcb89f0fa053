"""The sink of a name: trimtab's own, an import path, or one of an installed package."""

from importlib import import_module
from typing import Any

from trimtab.core.errors import ConfigError, TrimtabError
from trimtab.core.plugins import SINKS, describe_error, list_plugins, load_plugins
from trimtab.core.sink import Sink

OWN_SINKS = {
    "mlflow": "trimtab.integrations.sinks.mlflow_sink:MlflowSink",
    "wandb": "trimtab.integrations.sinks.wandb_sink:WandbSink",
    "tensorboard": "trimtab.integrations.sinks.tensorboard_sink:TensorBoardSink",
    "trackio": "trimtab.integrations.sinks.trackio_sink:TrackioSink",
    "prometheus": "trimtab.integrations.sinks.prometheus_sink:PrometheusSink",
    "alerts": "trimtab.integrations.alerts.alert_sink:AlertSink",
}
"""They win over an installed sink of the same name."""


def find_sink(name: str) -> Sink:
    """Make the sink of a name, or of an import path such as `pkg.module:Sink`.

    Raises ConfigError.
    """
    if name in OWN_SINKS:
        return _make(_import(OWN_SINKS[name]), name)
    if ":" in name:
        return _make(_import(name), name)
    plugins = load_plugins(SINKS)
    for plugin in plugins:
        if plugin.name == name:
            if plugin.failure is not None:
                raise ConfigError(plugin.failure)
            return _make(plugin.object, str(plugin))
    known = ", ".join([*OWN_SINKS, *(plugin.name for plugin in plugins)])
    raise ConfigError(f"there is no sink {name!r}; choose from {known}")


def shadowed() -> list[str]:
    """Installed sinks that are not used because trimtab has one of the same name."""
    return [str(plugin) for plugin in list_plugins(SINKS) if plugin.name in OWN_SINKS]


def _import(path: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except TrimtabError:
        raise
    except Exception as error:
        raise ConfigError(f"the sink {path} cannot be imported: {describe_error(error)}") from error


def _make(factory: Any, name: str) -> Sink:
    try:
        sink = factory()
    except TrimtabError:
        raise
    except Exception as error:
        raise ConfigError(f"the sink {name} cannot be made: {describe_error(error)}") from error
    if not isinstance(sink, Sink):
        raise ConfigError(
            f"{name} is not a sink: it lacks a name, needs_everything, begin, send, finish or close"
        )
    return sink
