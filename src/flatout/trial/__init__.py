"""Trials: a job with a set of changes -> what it measured.

Here are the command to start, the reading of its recording, the gates, and the journal. Nothing is started here:
`launch/` starts jobs, `profile/` records them, and `tune/` composes the three.
"""
