"""What a child logs of its events."""

from structlog.testing import capture_logs

from nightshift.worker.telemetry.log_lines import LogLines
from nightshift.worker.telemetry.recorder import BatchCommitted, Recorder


def test_a_line_has_a_constant_name_and_the_fields_of_its_event() -> None:
    recorder = Recorder(LogLines())
    crash = RuntimeError("a bug")
    with capture_logs() as lines:
        recorder.batch_committed(BatchCommitted(7, 2, 9, 4, 5, 2, 30, 40, 0.2, whole=True))
        recorder.lease_lost(7, 2)
        recorder.batch_ended("lost")
        recorder.problem("release_failed", batch_id=7, error="away")
        recorder.crash("end_failed", crash, batch_id=7)
    assert [(line.pop("event"), line.pop("log_level"), line) for line in lines] == [
        ("batch_done", "info", {"batch_id": 7, "attempt": 2, "rows": 9, "rows_failed": 4}),
        ("lease_lost", "warning", {"batch_id": 7, "attempt": 2}),
        ("release_failed", "warning", {"batch_id": 7, "error": "away"}),
        ("end_failed", "error", {"batch_id": 7, "exc_info": crash}),
    ]
