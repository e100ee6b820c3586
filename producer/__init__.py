"""The `nightshift` command: submit, look, control, and the reaper."""

if __name__ != "nightshift.producer":
    raise ImportError(
        "import nightshift.producer: under a bare name its modules would be loaded twice"
    )
