"""Turn trials into verdicts. This package is statistics only: it reads, writes and starts nothing.

`judge.judge` decides from pairs of trials whether a candidate is better than the baseline, with an error rate that
holds however often it is asked. `noise.noise_floor` measures how much trials of the same job differ, and
`noise.plan_trials` how long and how many they must be. `screening` selects the candidates to confirm. The reasoning is
in `docs/concepts/verdicts.md`.
"""
