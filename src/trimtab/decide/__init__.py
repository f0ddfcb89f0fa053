"""What to do about an incident.

advice         what people are advised, by class of incident, for both rule sets
symptoms       what each symptom says: its family, how late its onset is judged
"""
