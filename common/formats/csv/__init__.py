"""CSV: its records as texts, the types of its columns, rows of a batch, and files that are written."""
