"""Tune a JAX job by settings of XLA and JAX, from outside: changes, trials, verdicts.

In: the user's command. Out: an `XlaTuning`. `tune.py` is the loop.
"""
