"""What a server of the HTTP API loads when it starts."""

import subprocess
import sys
from pathlib import Path


def test_a_server_starts_without_arrow() -> None:
    """Arrow, which results and submits need, takes as much memory as the rest of the server."""
    heavy = "pyarrow numpy celery transformers"
    script = (
        "import sys; from nightshift.producer import connect; "
        "from nightshift.producer.serve.console import app; "
        "from nightshift.producer.serve import server; "
        f"print([name for name in {heavy.split()!r} if name in sys.modules])"
    )
    here = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=here, check=True
    )
    assert done.stdout.strip() == "[]"
