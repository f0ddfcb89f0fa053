"""The user's loop: hooks around `optimizer.step()`, the step loop, how a run ends."""
