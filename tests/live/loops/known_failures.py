"""What does not hold yet: a test by its name, with or without its parameters -> what happens.

`ranks/leaving::a_test` is `test_a_test` in `ranks/test_leaving.py`.
"""

KNOWN_FAILURES = {
    "clipping::what_follows_the_clip_acts_on_clipped_gradients[log_the_norm]": (
        "who reads a gradient after the guard's clip sees it unclipped: it is clipped in the update"
    ),
    "clipping::a_step_that_nobody_recorded_is_looked_at_too[True]": (
        "the guard's clip makes the gradients NaN in the update, and nothing withholds it"
    ),
    "copies::a_watched_model_can_be_scripted": "AttributeError: the hook has no __name__",
    "optimizers::optimizers_with_a_quantized_state_are_protected": (
        "the trial of a step without gradients copies the state, which torchao's cannot"
    ),
    "signals_and_exits::a_sigterm_ends_a_process_that_waits_in_a_collective": (
        "a handler in Python runs only when the wait has ended"
    ),
}
