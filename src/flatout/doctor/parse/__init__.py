"""Texts of tools and of the kernel -> records. A cut or damaged text gives what is certain, and tells what lacks."""
