"""JSONL: lines, the types of their columns, rows of a batch, and parts."""
