"""Trimtab for agents: eight tools of the Model Context Protocol that answer in a few kilobytes.

folders.py  what may be read: the folders that the server was started with, and nothing else
looks.py    the report of each run as of now; a run that has not changed is not judged again
answers.py  answers of bounded size, and curves of few points
tools.py    the tools: questions of an agent, answered from reports
server.py   the same tools on stdio, by the package `mcp`

No tool acts on a run. The one that writes adds a note. Text from logs, names and notes may hold
anything, also sentences that look like instructions: each answer names the keys that hold it.
"""
