"""What happens on the host.

in_flight.py          numbers on their way from the device to the host, `lag` steps long
record_assembler.py   numbers that arrived become the record of their step
run_recorder.py       records are journalled and judged; only on the first rank
judge_state.py        what the judge knows, saved for a resume
batch_memory.py       the token ids of the last batches, and what is unusual about them
incident_log.py       incidents are logged, kept and handed to `on_incident`
ship_process.py       starts the shipper to trackers and alerts, and logs what it reports
clip_detector.py      a gradient norm that was clipped before it was seen
"""
