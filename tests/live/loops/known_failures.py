"""What does not hold yet: a test by its name, with or without its parameters -> what happens.

`ranks/leaving::a_test` is `test_a_test` in `ranks/test_leaving.py`.
"""

KNOWN_FAILURES = {
    "copies::a_watched_model_can_be_scripted": "AttributeError: the hook has no __name__",
    "signals_and_exits::a_sigterm_ends_a_process_that_waits_in_a_collective": (
        "a handler in Python runs only when the wait has ended"
    ),
}
