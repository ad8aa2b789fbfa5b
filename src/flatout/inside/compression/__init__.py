"""Compress the first model that a process infers with, before its first call; one variant a file.

`install_compression` does what FLATOUT_COMPRESS asks for and reports it. `variants.compress` changes a model in place,
and can be called by scripts too: it needs torch alone.
"""
