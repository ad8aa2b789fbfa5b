"""The nouns that the stages pass to each other. Frozen, typed; imports nothing of Flatout but errors and units."""
