"""The end of a job: rows that have not begun go from a busy child to idle ones."""
