"""Rows out of tables: what a job reads of a version, and what newer versions have added."""
