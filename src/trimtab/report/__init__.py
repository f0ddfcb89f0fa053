"""A judged run as terminal text, as a post-mortem, as pages, and as JSON.

run_report           RunReport: the values that all views are made from
terminal, sparkline  `trimtab diagnose` and `trimtab observe` in a terminal
document             a document as a tree of values, and its Markdown and HTML
postmortem           one incident as a document
batch_section        its sequences and tokens, in words and as tables
figures              the signals around it and its tokens, as SVG
notebook             the card of a run in a notebook cell
wording              causes, reasons and events in words
incident_files       the folder of each incident on disk, and LESSONS.md beside the runs
pages/               HTML: the page of a run, of an incident, of a comparison, of many runs
"""
