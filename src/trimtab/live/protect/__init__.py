"""Protection: a bad step never reaches the weights, and nothing waits for the decision.

    loss.backward()
    guard.clip_grad_norm_(1.0)       torch clips; the gate remembers the gradients it has left
    optimizer.step()
      pre-hook                       RankSync      numbers of all ranks added up (all_reduce, SUM)
                                     Rule          take, scale down or discard, compared with
                                                   Baseline
                                     RankSync      all ranks do the same (all_reduce, MAX)
                                     BufferGuard  running statistics of a bad batch taken back
                                     Discard       a flag on the device, or no gradients
      the update                     happens, or leaves every bit as it was
      post-hook                      Discard       everything as it was found

The rule is tensors from end to end, so the host never learns the decision in time to act on it, and
need not. Only an optimizer that cannot read a flag costs one host read (FusedSupport knows which),
and only if it was proven that it moves nothing without gradients. GateReporter puts the
decisions into journal and log when they arrive. RateScale is apart from it: after a rollback that
asks for it, updates are made with a fraction of the learning rate.
"""
