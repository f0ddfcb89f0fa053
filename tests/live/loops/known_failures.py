"""What does not hold yet: a test by its name, with or without its parameters -> what happens.

`ranks/leaving::a_test` is `test_a_test` in `ranks/test_leaving.py`.
"""

_CLIPPING = {
    "a_step_that_the_user_skips_by_its_norm_costs_no_other_step": (
        "the scale of the step that was not taken spoils every later gradient"
    ),
    "record_changes_no_gradient_of_the_other_optimizer": "record divides the other's gradient",
    "a_norm_taken_earlier_does_not_vouch_for_the_gradients_that_are_applied": "NaN gets in",
    "a_norm_recorded_after_the_step_does_not_vouch_for_the_next_one": "NaN gets in",
    "what_follows_the_clip_acts_on_clipped_gradients": "gradients are clipped only in the update",
}

_SEVERAL_OPTIMIZERS = {
    "optimizers_that_take_turns_make_a_step_each": "each is journalled as not applied",
    "a_discard_is_reported_when_optimizers_take_turns": "no event and no signal",
    "each_of_several_critic_steps_is_judged_by_its_own_gradients": "the first decision serves all",
    "a_step_inside_backward_is_protected_or_refused": "the first parameter decides for all",
    "the_learning_rate_of_every_optimizer_is_journalled": "only that of the first",
}

_GONE = "telemetry fails, and the guard and its gate are gone"

_OPTIMIZERS = {
    **{
        f"foreign_state_leaves_loss_norm_and_gate_working[{name}]": _GONE
        for name in (
            "CountsByInteger",
            "CountsInTheGroup",
            "HasThreeBetas",
            "HasNoBetas",
            "HasNoEpsilon",
            "HasNoRate",
            "HasRateNone",
            "KeepsMomentsInBytes",
        )
    },
    "moments_in_another_precision_leave_the_gate_working": _GONE,
    "optimizers_of_other_packages_are_protected_or_refused": _GONE,
    "an_optimizer_that_moves_without_gradients_is_protected_or_refused": (
        "a discard raises or leaves a trace, and nothing is said"
    ),
    "a_hook_of_the_user_finds_the_gradients_of_a_discarded_step": "the gradients are None",
    "parameters_added_in_mid_run_are_watched": _GONE,
    "a_new_parameter_whose_gradient_is_nan_is_kept_out": "its gradient is in no norm",
}

_METRICS = {
    "an_odd_value_ends_neither_watching_nor_protection": "record fails, and the guard is gone",
    "an_odd_metric_is_named_once_in_the_log": "the guard is gone instead",
    **{
        f"a_metric_may_not_take_the_name_of_ours[{name}]": "it overwrites ours"
        for name in ("nan", "inf", "vote", "adam_step", "discarded", "param_norm")
    },
    "tokens_that_nobody_gave_are_missing": "1 for each micro-batch",
    "a_metric_keeps_its_digits": "float32",
    "a_loss_of_minus_infinity_stays_negative": "+inf",
    "a_cosine_stays_within_one_in_bf16": "1.001",
    "a_loss_recorded_after_the_step_is_reported": "only one event",
}

_SKIPS = {
    "a_skipped_batch_costs_no_healthy_step": "the NaN stays in the loss of the next step",
    "a_skipped_step_has_a_record_and_a_number": "the step is missing or merged with the next",
    "a_batch_left_out_in_the_step_loop_is_not_merged_with_the_next": "two batches in one record",
    "two_losses_before_one_backward_are_one_step": "two steps",
    "data_positions_go_on_from_epoch_to_epoch": "they begin at 0 again",
}

_EVALUATION = {
    "a_loss_recorded_in_evaluation_is_not_added_to_a_step": "it is added to the next step",
    "a_nan_in_evaluation_discards_no_step": "the next step is discarded",
}

_COPIES = {
    "a_watched_model_can_be_copied": "TypeError: the hooks hold the journal",
    "a_watched_model_can_be_scripted": "AttributeError: the hook has no __name__",
}

_DTYPES_AND_DEVICES = {
    "the_default_dtype_does_not_matter": "buffers and flags take the default dtype",
    "the_default_device_does_not_matter": "buffers follow it; NotImplementedError in step",
    "complex_parameters_are_watched_and_protected": "no norm of a complex gradient in float32",
    "parameters_on_two_devices_are_measured": "norms of two devices are stacked",
    "per_sample_gradients_leave_the_guard_working": "a forward hook fails, and the guard is gone",
}

_BUFFERS = {
    "running_statistics_of_a_discarded_batch_come_back": "they stay NaN",
    "a_run_that_is_broken_for_good_ends_with_a_sentence": "it is discarded for ever",
}

_SIGNALS_AND_EXITS = {
    "training_after_a_graceful_sigterm_is_still_protected": "the guard closes in the handler",
    "a_sigterm_inside_a_bad_step_lets_nothing_through": "the guard closes in the handler",
    "the_sigterm_handler_is_the_users_again_whatever_the_order_of_closing": "ours stays",
    "a_sigterm_ends_a_process_that_waits_in_a_collective": "only when the wait has ended",
    "two_guards_leave_nothing_on_the_optimizer": "found_inf stays, training is frozen",
    "a_failed_start_leaves_nothing_behind": "forward hooks stay",
    "a_start_that_fails_late_can_be_tried_again": "hooks, threads and the lock stay",
    "a_relative_run_directory_stays_where_it_was": "records go elsewhere",
    "the_same_run_directory_again_in_one_process_is_no_other_process": "'another process'",
}

_SILENCE = {
    "steps_that_nobody_records_are_reported": "nothing in the log",
    "records_without_a_step_are_reported": "nothing in the log",
    "an_optimizer_whose_step_is_never_called_is_reported": "nothing in the log",
    "blocks_that_return_a_dict_are_not_taken_for_compiled": "advice about torch.compile",
    "a_run_that_does_not_clip_is_not_told_that_it_clips": "advice about clipping",
    "a_journal_that_cannot_be_written_is_reported": "nothing in the log",
    "an_incident_is_logged_listed_and_handed_over": "there is no on_incident",
    "a_callback_that_raises_does_not_end_the_run": "there is no on_incident",
}

_LEAKS = {
    "gradients_missing_at_changing_places_keep_no_memory": "an index set is kept for each place",
    "a_graph_kept_by_backward_is_not_kept_longer": "buffers keep graphs",
}

_COMPILED = {
    "a_compiled_step_is_not_compiled_again_for_the_guard": "the recompile limit is hit in ours",
}

_RANKS_LEAVING = {
    "a_graceful_sigterm_leaves_time_for_the_checkpoint": "one rank leaves alone; gloo aborts",
    "ranks_with_fewer_batches_may_join": "gloo aborts",
    "a_rank_that_leaves_the_guard_leaves_the_others_alone": "gloo aborts",
    "a_step_that_one_rank_does_not_record_is_a_step": "gloo aborts",
    "recording_on_the_first_rank_alone_works_and_is_reported": "the first rank waits",
    "a_guard_on_one_rank_alone_is_refused_or_works": "gloo aborts",
    "a_batch_that_all_ranks_skip_costs_no_other_step[protect]": "the next step is discarded",
}

_RANKS_GROUPS = {
    "training_goes_on_during_an_asynchronous_save": "collectives mix on the default group",
    "collectives_of_a_users_thread_stay_right": "collectives mix on the default group",
    "only_the_ranks_of_the_given_group_are_watched": "there is no process_group",
    "a_world_where_not_all_train_does_not_hang_without_a_group": "watch waits for the world",
    "a_guard_older_than_the_group_decides_with_the_others": "each rank decides alone",
    "an_odd_value_on_one_rank_ends_nothing": "the guard is gone on all ranks",
    "a_copy_is_not_watched_on_any_rank": "TypeError on the first rank, a watcher on the others",
}

_MESHES = {
    "the_norm_on_a_mesh_is_that_of_one_process[replicated_tensor_parallel]": "ConfigError",
    "the_norm_on_a_mesh_is_that_of_one_process[sharded_tensor_parallel]": "ConfigError",
    "a_nan_in_one_shard_is_kept_out_on_every_rank[tensor_parallel]": (
        "fused AdamW refuses plain tensors and DTensors together"
    ),
    "a_nan_in_one_shard_is_kept_out_on_every_rank[replicated_tensor_parallel]": "ConfigError",
    "a_nan_in_one_shard_is_kept_out_on_every_rank[sharded_tensor_parallel]": "ConfigError",
    "the_norm_of_pipeline_stages_is_that_of_one_process": "gloo aborts at the first telemetry",
    "a_nan_in_one_stage_is_kept_out_of_both": "gloo aborts at the first telemetry",
    "experts_under_one_name_have_the_true_norm_or_none": "0.5144 instead of 0.5147",
    "fsdp1_is_clipped_by_the_norm_of_all_shards_or_refused": "each rank clips by its own norm",
    "an_expert_without_a_token_has_no_activation": "it counts as -1",
}

_FILES = {
    "clipping": _CLIPPING,
    "several_optimizers": _SEVERAL_OPTIMIZERS,
    "optimizers": _OPTIMIZERS,
    "metrics": _METRICS,
    "skips": _SKIPS,
    "evaluation": _EVALUATION,
    "copies": _COPIES,
    "dtypes_and_devices": _DTYPES_AND_DEVICES,
    "buffers": _BUFFERS,
    "signals_and_exits": _SIGNALS_AND_EXITS,
    "silence": _SILENCE,
    "leaks": _LEAKS,
    "compiled": _COMPILED,
    "ranks/leaving": _RANKS_LEAVING,
    "ranks/groups": _RANKS_GROUPS,
    "ranks/meshes": _MESHES,
}

KNOWN_FAILURES = {
    f"{file}::{name}": reason for file, tests in _FILES.items() for name, reason in tests.items()
}
