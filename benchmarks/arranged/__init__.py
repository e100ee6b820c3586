"""Datasets whose rows have something in common: raw vLLM beside the fleet, which knows the whole dataset."""
