"""What trimtab writes to trackers is read back under the names that the journal has."""

import json

from tests.readers.shapes import Write, values

from trimtab.core.signals import BALANCING_LOSS, LOSS
from trimtab.integrations.sinks.rows import PREFIX, tracker_name
from trimtab.readers import read_log


def test_names_beside_those_of_the_user(write: Write) -> None:
    own = {LOSS: 2.5, BALANCING_LOSS: 0.5, "param_norm/blocks": 5.0}
    sent = {tracker_name(name): value for name, value in own.items()}
    rows = [
        {"_step": tick, f"{PREFIX}step": 7 + tick, **sent, "loss": 9.0, "acc": 0.5}
        for tick in range(3)
    ]
    reading = read_log(write("".join(json.dumps(row) + "\n" for row in rows)))
    assert reading.block.step.tolist() == [7, 8, 9]
    for name, value in own.items():
        assert values(reading.block, name) == [value] * 3
    assert reading.block.columns.keys() == {*own, "loss (other)", "acc", "_step"}
    assert not any("guessed" in note for note in reading.notes)
