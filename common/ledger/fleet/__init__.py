"""What the ledger keeps of machines: workers, slots, plans of pools, cordons, outages."""
