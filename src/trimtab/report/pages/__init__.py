"""Pages: one HTML file each, no request to anywhere, light and dark.

dashboard, run_data    the page of a run: its HTML, and the JSON of its charts
postmortem_page        the page of an incident
compare_page           runs over each other
fleet_page             many runs
charts                 which charts a run has, and how to record what is missing
line, heat_map, axis   one signal, many layers, the vertical axis
decimate               fewer points with true peaks
figures                the figure of an incident, as SVG
page                   the shell: policy, style, data
html_text, markdown    escaped HTML; our Markdown as HTML
assets/                style and scripts; uPlot with its licence
"""
