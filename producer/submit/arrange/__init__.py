"""Rows sorted by their requests before they are planned, so that what they share is computed once."""
