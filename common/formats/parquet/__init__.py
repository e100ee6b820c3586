"""Parquet: footers, the rows of a batch out of row groups, and parts."""
