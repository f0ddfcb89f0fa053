"""Trimtab in other people's trainers and trackers.

hf.py               `TrimtabCallback` for the Hugging Face Trainer and TRL
accelerate.py       `watch` for a loop with an Accelerator
lightning.py        `TrimtabCallback` for the Lightning Trainer
torchtitan.py       `watched`, an override for torchtitan
trainer_adapter.py  what these share: start and end, batches, what is replaced on a trainer
sinks/              trackers: one file each
alerts/             messages to people: a webhook, a command, every service of apprise
agents/             tools for agents, by the Model Context Protocol
incident_news.py    what the journal says about an incident, for sinks and alerts

Nothing below this folder knows a trainer or a tracker. A module of a trainer needs its package.
"""
