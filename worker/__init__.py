"""The worker: a supervisor for one machine, and the children that hold warm engines."""

if __name__ != "nightshift.worker":
    raise ImportError(
        "import nightshift.worker: under a bare name its modules would be loaded twice"
    )
