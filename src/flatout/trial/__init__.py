"""Trials: runs of a job with a set of changes, and their measurements.

This package builds the command, reads its recording, checks the gates and keeps the journal. It starts nothing:
`launch/` starts jobs, `profile/` records them, and `tune/` composes the three.
"""
