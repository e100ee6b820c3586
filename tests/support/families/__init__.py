"""Tiny models of this year's families, made here without weights, and what such models write."""
