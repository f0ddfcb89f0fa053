"""`trimtab lab list`: the faults and hard negatives of the lab."""

from trimtab.cli.json_output import AsJson, print_json


def list_kinds(as_json: AsJson = False) -> None:
    """List the faults, natural instabilities and hard negatives of the lab.

    Needs the `lab` extra of trimtab: torch, tokenizers and torchdata.

    Exit code: 0 printed, 2 usage error, 3 the extra is not installed.
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    from rich.console import Console
    from rich.table import Table

    from trimtab.cli import output
    from trimtab.core.jsonable import to_jsonable

    with output.reported_errors():
        from trimtab.lab.scenarios.catalogue import FAULTS, HARMLESS, NATURAL, describe
    if as_json:
        groups = {"faults": FAULTS, "natural": NATURAL, "hard_negatives": HARMLESS}
        shown = {
            group: [{"name": name, **to_jsonable(describe(kind))} for name, kind in kinds.items()]
            for group, kinds in groups.items()
        }
        print_json("lab list", shown)
        return
    console = Console(highlight=False)
    for title, kinds in (
        ("Faults", FAULTS),
        ("Natural instabilities: caused by a setting alone", NATURAL),
        ("Hard negatives: they look like a fault and are not", HARMLESS),
    ):
        table = Table("name", "what it does", "severity 0 to 1", "lasts", "run", title=title)
        table.title_justify, table.box = "left", None
        for name, kind in kinds.items():
            row = describe(kind)
            table.add_row(name, row.title, row.strengths, row.lasts, row.base)
        console.print(table)
        console.print()
