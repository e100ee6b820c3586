"""Questions to the ledger that change nothing."""
