"""What a process says of itself: metrics, the listener that serves them, state files for probes."""
