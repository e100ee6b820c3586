"""A wing: `nightshift doctor` checks what a fleet stands on."""
