"""Reads of a training's files from copies on the node: the first epoch fills the cache, the others read from it.

store        the copies: admitted until the cache is full, never evicted, shared by all processes of the host
reads        Python's `open`, which reads a copy where there is one
"""
