"""Compress a model in several ways, and find which of them are faster without being worse than a limit.

`loop.compress` is the whole of it: evaluate, benchmark, choose, and judge what was chosen on data that chose nothing.
`backend` runs the user's two commands. Speed is judged by `compare/`, accuracy by `verdict.non_inferiority`.
"""
