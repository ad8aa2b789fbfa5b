"""The conditions of `--fail-on`: under which a command exits with code 1 although it succeeded.

`words` has the words of each command and the one parser; the other modules say which conditions a result meets.
"""
