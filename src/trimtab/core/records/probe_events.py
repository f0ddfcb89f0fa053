"""The events of experiments and decisions on an incident, as the journal has them."""

PROBE_ANSWER = "probe answer"
"""An experiment is over. Facts: `probe` (its name), `incident`, `about` (the step), `answer`,
`sentence`, `facts`, and what it has cost in `steps` and `seconds`."""

DECISION = "decision"
"""What a run has decided about an incident. Facts: `incident`, `act`, `cost`, `reason`, and `hold`,
the settings that are held at the values of a snapshot because they differed from it."""
