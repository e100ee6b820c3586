"""The ledger with a million batches in it."""
