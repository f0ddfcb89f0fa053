"""Pages: one HTML file each, no request to anywhere, light and dark.

run_page    the page of a run and of an incident: their HTML
run_charts  the JSON of a run's charts, and how to record what is missing
many_runs   runs over each other; all runs at a glance
series      signals as decimated lines and heat maps, and their axes
page        the shell: policy, style, data
assets/     style and scripts; uPlot with its licence
"""
