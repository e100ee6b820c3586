"""Tenants of the HTTP API: their keys, their limits, and what their specs may do."""
