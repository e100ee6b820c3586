"""What a job may use: the folders it was admitted under, as far as its tenant still has them."""

import pytest

from nightshift.common.ledger.jobs.job_roots import UNBOUND, Admitted, still_held

CASES: list[tuple[Admitted, list[str] | None, tuple[str, ...] | None]] = [
    (UNBOUND, ["/a"], None),
    (UNBOUND, None, None),
    (Admitted(["/a"]), ["/a"], ("/a",)),
    (Admitted(["/a"]), ["/a", "/b"], ("/a",)),
    (Admitted(["/a", "/b"]), ["/b"], ("/b",)),
    (Admitted(["/a"]), ["/a/sub"], ("/a/sub",)),
    (Admitted(["/a/sub"]), ["/a"], ("/a/sub",)),
    (Admitted(["/a"]), ["/a-2", "/"], ("/a",)),
    (Admitted(["/a-2"]), ["/a"], ()),
    (Admitted(["/a/"]), ["/a/b/"], ("/a/b/",)),
    (Admitted(["s3://x/a"]), ["s3://x", "s3://y"], ("s3://x/a",)),
    (Admitted(["/a"]), [], ()),
    (Admitted(["/a"]), None, ()),
    (Admitted([]), ["/a"], ()),
    (Admitted(["/a"], "/store/acme/inputs"), [], ("/store/acme/inputs",)),
    (Admitted(["/a"], "/store/acme/inputs"), ["/a"], ("/a", "/store/acme/inputs")),
    (Admitted([], "/s/a/inputs", "/s/a/outputs"), None, ("/s/a/inputs", "/s/a/outputs")),
]


@pytest.mark.parametrize(("admitted", "now", "held"), CASES)
def test_a_job_may_use_what_both_its_admission_and_its_tenant_allow(
    admitted: Admitted, now: list[str] | None, held: tuple[str, ...] | None
) -> None:
    assert still_held(admitted, now) == held
