"""Input files become batches: looked at, copied where they cannot be seeked, cut."""
