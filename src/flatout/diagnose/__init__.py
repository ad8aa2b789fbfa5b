"""Where the time went -> named findings, each with evidence, cost, changes to try and how safe they are.

`find.diagnose` runs the rules in `rules/`, one file a finding. `case.Case` holds what they ask.
"""
