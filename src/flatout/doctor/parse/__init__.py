"""Parse texts of tools and of the kernel into records. From damaged text, only certain values and problems are kept."""
