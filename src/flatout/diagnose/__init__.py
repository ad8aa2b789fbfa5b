"""Attributed time -> named findings, each with evidence, cost, changes to try and their safety.

`find.diagnose` runs the rules in `rules/`, one file per finding. `context.Case` answers their queries.
"""
