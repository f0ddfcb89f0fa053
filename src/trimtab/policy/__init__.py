"""Policy: a diagnosed incident in, one action out.

advice             the table from class to action, for both rule sets
incident_report    a diagnosis and its action
"""
