"""Keep a job alive: hang detection, evidence-based restarts, the checkpoint interval, and the ledger of GPU time."""
