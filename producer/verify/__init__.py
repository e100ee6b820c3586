"""Verify: files and ledger read from the outside."""
