"""What a shell offers for the values of options; typer knows commands, options and enums."""


def formats(incomplete: str) -> list[str]:
    """The log formats that begin like this."""
    from trimtab.readers.registry import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


def sinks(incomplete: str) -> list[str]:
    """The sinks that begin like this."""
    from trimtab.core.plugins import SINKS, list_plugins
    from trimtab.integrations.shipper.shipper import OWN_SINKS

    names = [*OWN_SINKS, *(plugin.name for plugin in list_plugins(SINKS))]
    return [name for name in names if name.startswith(incomplete)]
