"""Turn trials into verdicts. This package is statistics only: it reads, writes and starts nothing.

`cost.trial_costs` reduces each trial to one number. `arms.judge_arms` decides from all trials of two arms whether a
candidate is better than the baseline, with an error rate that holds however often it is asked. `prospect` says what
more trials would show, and what a budget can show. `noise.noise_floor` measures how much trials of the same job differ,
and `noise.plan_trials` how long they must be. `screening` selects the candidates to confirm. `blocks` judges blocks of
steps within one running job. The reasoning is in `docs/concepts/verdicts.md`.
"""
