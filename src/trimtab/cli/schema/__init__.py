"""The JSON Schema of everything that `--json` prints.

json_type.py    a Python type as JSON Schema
run_shapes.py   what the commands about runs print
lab_shapes.py   what `corpus`, `lab` and the smaller commands print
published.py    the schema of all commands, as `trimtab schema` prints it

`docs/trimtab-1.schema.json` is what `trimtab schema` prints; a test compares them.
"""
