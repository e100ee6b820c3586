"""What the producer and the worker share: spec, settings, ledger, storage, formats."""

if __name__ != "nightshift.common":
    raise ImportError(
        "import nightshift.common: under a bare name its modules would be loaded twice"
    )
