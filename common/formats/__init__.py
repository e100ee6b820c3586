"""Rows in and parts out, whatever the format."""
