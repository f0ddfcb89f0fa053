"""What tests and benchmarks share: models, training loops, ranks, journals, servers.

The kit is below both: it imports neither a test nor a benchmark, and tests and benchmarks do not
import each other.

Which tests run when: `rooms`, `cases`.
Runs as data: `synthetic` (blocks, incidents and diagnoses), `public_runs`, `journal_rows`,
`text_logs` (logs in the words of each trainer), `token_files`, `damage`, `fuzz`.
Training: `tiny` (the model and a plain loop), `user_loop` (a step as users write it, and a watched
run of such steps), `runs` (a run that can be rolled back), `undo` (a run with a fault in its
memory), `resumes` (a script that saves, stops and resumes), `check_objects` (objects with planted
faults), `gate_rule`, `watched_run` (a loop that asks for all that a guard does) and
`fault_injection` (the same while a function of the guard raises).
Ranks: `launch` (processes with gloo), `threads`, `rank_schedules`, `late_ranks`, `traffic`.
Trainers: `hf`, `lightning`, `torchtitan`, `trainer_runs` (one run in each of them).
The rest of the world: `servers`, `ray_cluster`, `chromium`, `plugins`, `disks`, `killed_writers`,
`following`, `printed_json`, `forked` (scripts and commands without the time to import).
"""
