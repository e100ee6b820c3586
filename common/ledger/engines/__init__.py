"""What the ledger knows of engines: loads that failed, revisions, settings that were tuned."""
