"""Protection: a bad step never reaches the weights, and nobody waits for the decision.

    loss.backward()
    guard.clip_grad_norm_(1.0)       FoldedClip    the norm now, the clipping inside the update
    optimizer.step()
      pre-hook                       Boundary      numbers of all ranks added up (all_reduce, SUM)
                                     Rule          take, scale down or discard: Conditions on
                                                   Baseline and Budget
                                     Ballot        all ranks do the same (all_reduce, MAX)
                                     Discard       a flag on the device, or no gradients
      the update                     happens, or leaves every bit as it was
      post-hook                      Discard       everything as it was found

The rule is tensors from end to end, so the host never learns the decision in time to act on it, and
need not. Only an optimizer that cannot read a flag costs one host read (Forms says which).
"""
