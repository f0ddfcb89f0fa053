"""What tests and benchmarks share: models, training loops, ranks, journals, servers.

The kit is below both: it imports neither a test nor a benchmark, and tests and benchmarks do not
import each other.

Runs as data: `synthetic` (blocks, incidents and diagnoses), `journal_rows`, `text_logs` (logs in
the words of each trainer), `token_files`, `damage`.
Training: `tiny` (the model and a plain loop), `user_loop` (loops as users write them), `runs` and
`recovering` (a run that can be rolled back), `resumes` (a script that saves, stops and resumes).
Ranks: `ranks` and `launch` (processes with gloo), `threads`, `recover_schedules`.
Trainers: `hf`, `lightning`, `torchtitan`.
The rest of the world: `servers`, `chromium`, `plugins`, `disks`, `killed_writers`, `following`,
`printed_json`.
"""
