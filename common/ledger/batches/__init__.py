"""What happens to a batch: claim, renew, release, commit, split, retry."""
