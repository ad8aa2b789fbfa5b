"""Keeps a job alive, and says how often to save it."""
