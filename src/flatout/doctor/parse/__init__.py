"""Parse texts of tools and of the kernel into records: of a damaged text, what is certain, and its problems."""
