"""The reaper: takes back stale leases, admits work, closes finished jobs."""
