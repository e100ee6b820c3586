"""Run a model over millions of rows on a fleet of GPU workers: what is imported and installed."""
