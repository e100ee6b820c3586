"""What the HTTP API keeps in the ledger: tenants, keys, files, batches, webhooks."""
