"""What a job wrote, read back: parts, one file, samples, vectors, results of the Batch API."""
