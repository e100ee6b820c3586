"""The first module of a child, run as `python -m nightshift.worker.child CONFIG`, CONFIG being a
ChildConfig as JSON.

vLLM's own processes import this module, too, since multiprocessing's spawn imports the main module
of the parent anew. So nothing heavy is imported here before the process is known to be a child.
"""

import atexit
import gc
import json
import sys
from pathlib import Path

# Imports make much that lives on, and collections that walk them find nothing.
gc.set_threshold(100_000, 50, 100)
# The last collections of an interpreter would walk all of vLLM: 2 s for each process.
atexit.register(gc.freeze)


def _note_steps() -> None:
    config = json.loads(sys.argv[1])
    if config["profile"] is None:
        return
    from nightshift.common.telemetry.steps import StepFile
    from nightshift.worker.telemetry.engine_steps import note_process

    names = {"supervisor": config["supervisor"], "worker_id": config["id"]}
    note_process(StepFile(Path(config["profile"]), names))


_note_steps()

if __name__ == "__main__":
    from nightshift.worker.celery_app import main

    main()
