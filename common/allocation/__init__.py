"""Who gets a slot: the slots of a pool and the work that waits become a plan. No input, no output."""
