"""`flatout tune`: the closed tuning loop for the user's own command.

`loop.tune` is the loop; `runner` runs its trials.
"""
