"""The door to DeepSpeed, whose engines clip and step by themselves.

    engine.backward(loss)              step_hooks   the loss is recorded
    engine.step()
      engine.optimizer.step()          step_hooks   which engine is at work
        is_invalid_grad_norm(norm)     seam         the optimizer asks before it touches a weight:
                                       pieces       in some steps: norms of this rank's gradients
                                       engine_gate  the ranks exchange, the gate answers
        the update, or a skip
      after it                         step_hooks   was it skipped? if nobody had asked, the ranks
                                                    exchange now, and nothing could be discarded
                                       pieces       in some steps: weights, moments, updates
      the schedule moves

Since 0.19 every optimizer of DeepSpeed asks that function; its answer True makes the engine clear
the gradients, hold the learning rate schedule and count a skipped step, on all ranks. DeepSpeed is
never imported here: who has an engine has imported it.
"""
