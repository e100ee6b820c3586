"""Datasets that grow: generations of a job, watched inputs, and files that changed."""
