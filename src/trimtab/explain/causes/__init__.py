"""The cause of an incident by evidence: trimtab's rules.

by_evidence     observations --> ranking --> conclusion, hypotheses
plausible       kind of run, base rates, impossible causes, caps (base_rates.json)
statements      what is said of a cause in one incident (claims.toml)
ranking         the scoring: causes by their probability, with the measured weights (weights.json)
conclusions     each cause in the words of a post-mortem
"""
