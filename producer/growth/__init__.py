"""Datasets that grow: files that come after the submit become further rows of the same job."""
