"""The peers benchmark: the same rows through raw vLLM, vLLM's own batch program, Ray Data and the fleet."""
