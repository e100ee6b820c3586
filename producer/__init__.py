"""The `nightshift` command: submit, look, control, and the reaper."""
