"""A job with a set of changes -> what it measured: the command to start, what its recording says, gates, the journal.

Nothing is started here: `launch/` does that, and `profile/` records it. `tune.py` puts them together.
"""
