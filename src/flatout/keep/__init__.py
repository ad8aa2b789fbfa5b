"""Keeps a job alive: hangs, restarts on evidence, how often to save it, and the ledger of each GPU-second."""
