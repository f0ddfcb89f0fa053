"""Count again what a guard makes a GPU do: `scripts/bench device_work`.

Writes the file that `trimtab selftest` compares a GPU with, and the table in docs/limits.md.
"""

from tests.kit.device_work import write

if __name__ == "__main__":
    write()
