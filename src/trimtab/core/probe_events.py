"""The events of experiments on an incident, as the journal has them."""

PROBE_ANSWER = "probe answer"
"""An experiment is over. Facts: `probe` (its name), `incident`, `about` (the step), `answer`,
`sentence`, `facts`, and what it has cost in `steps` and `seconds`."""
