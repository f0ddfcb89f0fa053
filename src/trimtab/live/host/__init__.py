"""What happens on the host, on the first rank.

run_recorder.py       records are journalled and judged
judge_state.py        what the judge knows, saved for a resume
resume_facts.py       whether a resume has restored everything
batch_memory.py       the token ids of the last batches, and what is unusual about them
incident_log.py       incidents are logged, kept and handed to `on_incident`
ship_process.py       starts the shipper to trackers and alerts, and logs what it reports
"""
