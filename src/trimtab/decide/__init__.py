"""Policy: what to do about an incident.

advice             the table from class to action that people read, for both rule sets
symptoms           what each symptom says: its family, how late its onset is judged
ladder/            what a recovering run does by itself, by expected cost
"""
