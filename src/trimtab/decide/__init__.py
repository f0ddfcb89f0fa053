"""What to do about an incident.

advice         what people are advised, by class of incident, for both rule sets
symptoms       what each symptom says: its family, how late its onset is judged

The ladder: what a recovering run does by itself, by expected cost in steps. Pure: the same
situation always gives the same decision, so decisions can be computed again from their file.

situation      what is known at a boundary between steps, and the decision: input and output
readings       a probe's reading against the healthy ones of the same run; how often to probe
costs          where an incident may come from, and the expected cost of each option
ladder         from situation to decision; decisions.jsonl
suspects       a setting, a data source or a rank that may be to blame
"""
