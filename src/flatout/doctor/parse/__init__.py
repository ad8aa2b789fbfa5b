"""Parse texts of tools and of the kernel into records. From a damaged text, only certain values are kept, with its
problems.
"""
