"""The ledger under a thousand simulated children: `make bench-scale`."""
