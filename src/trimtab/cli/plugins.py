"""The installed plug-ins, listed at the end of `--help`."""

from typing import Any

from typer.core import TyperCommand


class CommandWithPlugins(TyperCommand):
    """A command whose help lists the installed plug-ins of other packages."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help, with the plug-ins of this moment at its end."""
        self.epilog = describe_plugins()
        super().format_help(ctx, formatter)


def describe_plugins() -> str:
    """One paragraph per plug-in; no plug-in is loaded."""
    from trimtab.core.plugins import CHECKPOINTERS, DETECTORS, READERS, SINKS, list_plugins
    from trimtab.report.escaping import printable

    kinds = (
        *(("detector", DETECTORS), ("reader", READERS)),
        *(("checkpointer", CHECKPOINTERS), ("sink", SINKS)),
    )
    found = [f"{kind} {plugin}" for kind, group in kinds for plugin in list_plugins(group)]
    if not found:
        return "Installed plug-ins: none."
    return "\n\n".join(printable(line) for line in ("Installed plug-ins:", *found))
