"""What the ledger keeps of jobs: submitted, changed, grown, judged, closed, archived, deleted."""
