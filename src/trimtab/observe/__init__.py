"""The observer: follows the journal of a run from outside of the training process, and judges it.

    training process                 observer                                      readers

    journal  ------------------->    Follower -> Judge -> explain -> write  --->   incidents/NNNN/
    checkpoints.json                     |                                         verdicts.json
        ^                                v                                         verdict.json
        |   one line for each change: log lines, incidents             --->        observer.jsonl
        `------------- the pipe of the child that `watch` started

run_observer.py          RunObserver: one run, judged as its journal grows
observed_run.py          ObservedRun: a run and its observer, while there is anything to do
news_writer.py           observer.jsonl, written by the one observer that holds the lease
judge_state.py           what the judge knew a while ago, so that a long run is not judged again
checkpoint_verdicts.py   unproven, proven or bad: a pure function of a run's attempts and incidents
liveness.py              whether the run is alive, stalled, died or ended, and how
wording.py               a change of an incident in one line
run_stream.py            RunStream: journal and observer.jsonl, for whoever shows or sends a run
server/                  the fleet and the pages of runs over HTTP
shipping/                to trackers and alerts, a thread for each
__main__.py              the process that `watch` starts

An observer can be killed at any moment and started again anywhere that sees the files: its results
follow from the journal alone, however it was cut.
"""
