"""Rows that do not fit into memory, sorted in the folder of temporary files."""
