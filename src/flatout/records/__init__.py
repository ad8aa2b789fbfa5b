"""The records that the stages pass to each other: frozen and typed. Imports only errors and units from Flatout."""
