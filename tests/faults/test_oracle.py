"""The oracle itself: a fleet that nobody disturbs passes it, and it sees what is wrong."""

import pytest

from tests.support.rig import Rig


@pytest.mark.slow
def test_a_row_that_is_lost_or_changed_or_a_part_too_much_is_seen(rig: Rig) -> None:
    ids = rig.submit("calm", 40)
    rig.reaper()
    rig.worker()
    rig.finished("calm", ids)
    part = min((rig.folder / "calm").glob("part-*"))
    whole = part.read_bytes()
    part.write_bytes(whole[:-1] + b"x")
    with pytest.raises(AssertionError, match=r"sha256|checksum"):
        rig.oracle("calm", ids)
    part.write_bytes(whole)
    rig.oracle("calm", ids)
    (rig.folder / "calm" / "part-000099-a1.parquet").write_bytes(whole)
    with pytest.raises(AssertionError, match="part-000099"):
        rig.oracle("calm", ids)
