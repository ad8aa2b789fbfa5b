"""Turn attributed time into named findings, each with evidence, cost, changes to try and their safety.

`find.diagnose` runs the rules in `rules/`, one file per finding. `context.DiagnosisContext` answers their queries.
"""
