"""Trials -> verdicts. Statistics only: nothing is read, written or started here.

`judge.judge` says whether a candidate is better than the baseline, from pairs of trials, and stays right however often
it is asked. `noise.noise_floor` measures how much trials of the same job differ, `noise.plan_trials` how long and how
many they must be, and `screening` picks whom to confirm among many. The reasoning is in `docs/concepts/verdicts.md`.
"""
