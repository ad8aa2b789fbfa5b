"""`flatout compare`: two commands, two commits or two Python environments, compared in alternating trials.

`loop.compare` is the comparison; `command` opens its folder, and `arms` says what each of the two runs.
"""
