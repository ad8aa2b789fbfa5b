"""`flatout tune`: the closed loop on the user's own command. `loop.tune` is the loop; `runner` runs its trials."""
