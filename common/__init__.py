"""What the producer and the worker share: spec, settings, ledger, storage, formats."""
