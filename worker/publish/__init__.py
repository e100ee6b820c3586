"""Finished batches become parts: written, committed behind their fences, moved to their place."""
