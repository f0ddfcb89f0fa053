"""A judged run as terminal text, as a post-mortem, as pages, and as JSON.

run_report           RunReport: the values that all views are made from
terminal, sparkline  `trimtab diagnose` in a terminal
postmortem, reasons  one incident as Markdown; what decided about its cause
batch_section        its sequences and tokens, as lines and as Markdown
token_figure, svg    their histogram, as text and as SVG
incident_files       the folder of each incident on disk
lessons              LESSONS.md beside the runs
pages/               HTML: the page of a run, of an incident, of a comparison, of many runs
server/              `trimtab serve`
live_view            `trimtab follow`
event_text           events in words
escaping             untrusted text made safe to show
"""
