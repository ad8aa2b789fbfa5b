"""Parse texts of tools and of the kernel into records. From damaged text, only certain values and the problems are
kept.
"""
