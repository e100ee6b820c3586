"""Rows of a batch as requests, and their outcomes as the table of a part."""
