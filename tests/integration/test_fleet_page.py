"""The page of the fleet over staged machines: what comes first, who learns what, how large it is."""

import re
from pathlib import Path

import pytest

from nightshift.common.ledger import Ledger
from nightshift.common.ledger.jobs import spending
from nightshift.common.ledger.jobs.answer_counts import AnswerCounts
from nightshift.common.ledger.jobs.spending import Spent
from nightshift.common.settings import Settings
from tests.support.console_site import Site, send
from tests.support.staged_slots import Slot, machine
from tests.support.world import World

TASK = {"kind": "generate", "prompt": "{{ text }}"}


@pytest.fixture
def site(ledger: Ledger) -> Site:
    return Site(ledger)


def generate(
    world: World, name: str, model: str, *sizes: int, pool: str = "default", tenant: str = "acme"
) -> int:
    engine = {"backend": "vllm", "model": model}
    return world.job(*sizes, name=name, pool=pool, tenant=tenant, engine=engine, task=TASK)


def text(page: str) -> str:
    """A page without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page))


def test_a_pool_with_work_and_without_a_worker_comes_first_and_says_what_to_do(
    site: Site, world: World
) -> None:
    busy = generate(world, "busy", "Qwen/Qwen3-0.6B", 5, 5)
    generate(world, "stuck", "x/y", 5, 5, 5, pool="zzz")
    machine(world, "gpu-1", [Slot(job=busy, works=True), Slot("loading", busy), Slot("free")])
    page = site.browser("ops").get("/fleet").text
    assert page.index(">zzz<") < page.index(">default<")
    assert "3 batches wait, and no machine works for this pool" in page.lower()
    assert "<code>nightshift-worker --pool zzz</code>" in page
    assert 'aria-label="1 at work, 1 loading, 1 free; 1 wanted, 1 batch waits"' in page
    guest = site.browser("viewer").get("/fleet").text
    assert "no machine works for this pool" in guest
    assert "nightshift-worker" not in guest


def test_engines_are_told_by_the_name_of_their_model(site: Site, world: World) -> None:
    jobs = [
        generate(world, "hub", "Qwen/Qwen3-0.6B", 5),
        generate(world, "folder", "/models/Llama-3.1-8B/", 5),
        generate(world, "cache", "s3://w/models--org--name/snapshots/0123456789abcdef0123", 5),
    ]
    machine(world, "gpu-1", [Slot("loading", job) for job in jobs])
    page = text(site.browser("ops").get("/fleet").text)
    for name in ("A Llama-3.1-8B 1", "B Qwen/Qwen3-0.6B 1", "C org/name 1"):
        assert name in page
    assert "/models/" not in page
    for (key,) in world.ask("SELECT engine_key FROM jobs"):
        assert key not in page


def test_the_operators_name_of_a_model_takes_the_place_of_its_own(
    ledger: Ledger, world: World, tmp_path: Path
) -> None:
    table = tmp_path / "models.yaml"
    table.write_text("models: {house: {engine: {backend: vllm, model: /models/a}}}")
    site = Site(ledger, Settings(serve_models=table))
    job = generate(world, "job", "/models/a", 5)
    machine(world, "gpu-1", [Slot(job=job)])
    ops = site.browser("ops")
    assert "A house 1" in text(ops.get("/fleet").text)
    assert "default house" in text(ops.get("/").text)
    assert "Model house Loaded from /models/a" in text(ops.get(f"/jobs/{job}").text)


def test_no_tenant_learns_the_jobs_or_models_of_another(site: Site, world: World) -> None:
    secret = generate(world, "secret-plan", "secret/model", 5, 5, tenant="other")
    own = generate(world, "own-plan", "own/model", 5, 5)
    error = "the folder of secret/model is gone"
    machine(world, "gpu-1", [Slot(job=secret, works=True, error=error), Slot("loading", own)])
    for who, knows in (
        ("viewer", "own"),
        ("user", "own"),
        ("other", "secret"),
        ("ops", "own secret"),
    ):
        page = site.browser(who).get("/fleet").text
        for name in ("own", "secret"):
            assert (f"{name}/model" in page) is (name in knows), (who, name)
            assert (f"{name}-plan" in page) is (name in knows), (who, name)
        assert ("another tenant&#39;s engine" in page) is (who != "ops")
        for (key,) in world.ask("SELECT engine_key FROM jobs"):
            assert key not in page


def test_an_engine_that_got_its_first_job_gets_its_name(site: Site, world: World) -> None:
    job = generate(world, "later", "late/model", 5, tenant="other")
    machine(world, "gpu-1", [Slot(job=job)])
    viewer = site.browser("viewer")
    assert "late/model" not in viewer.get("/fleet").text
    generate(world, "same", "late/model", 5)
    site.app.state.model_names._known.clear()  # as after AGAIN_SECONDS
    assert "late/model" in viewer.get("/fleet").text


@pytest.mark.slow
def test_a_thousand_slots_are_a_page_of_a_bounded_size_and_each_machine_has_its_own(
    site: Site, world: World
) -> None:
    jobs = [generate(world, f"job-{n}", f"org/model-{n}", *[1] * 340) for n in range(3)]
    for n in range(125):
        slots = [Slot(job=jobs[(n + i) % 3], works=i != n % 8, busy=i / 10) for i in range(8)]
        machine(world, f"gpu-{n:03}.cluster.example.org", slots)
    ops = site.browser("ops")
    page = ops.get("/fleet")
    assert len(page.content) < 130_000
    assert page.text.count('<svg class="cells" role="img"') == 125
    assert "875 at work, 125 idle" in page.text
    (place,) = re.findall(r'href="(/fleet\?host=gpu-117[^"]*)"', page.text)
    own = ops.get(place).text
    assert own.count('<tr><th scope="row">') == 8
    assert "gpu-116" not in own
    assert 'hx-get="/live/fleet?host=gpu-117' in own


def test_a_machine_is_moved_from_its_page_and_one_that_is_gone_says_so(
    site: Site, world: World
) -> None:
    machine(world, "gpu-1.example.org", [Slot("free")])
    ops = site.browser("ops")
    assert 'value="drain"' in ops.get("/fleet?host=gpu-1.example.org").text
    assert send(ops, "/fleet", {"do": "drain", "name": "gpu-1.example.org"}).status_code == 303
    assert 'value="uncordon"' in ops.get("/fleet?host=gpu-1.example.org").text
    hostile = ops.get("/fleet?host=<script>").text
    assert "No machine of the name &lt;script&gt; works here now" in hostile


def test_the_page_of_a_job_has_its_answers_by_length_and_by_label(site: Site, world: World) -> None:
    choice = {"output": {"choice": ["yes", "no <b>"]}}
    engine = {"backend": "vllm", "model": "m/m"}
    job = world.job(9, name="chosen", tenant="acme", engine=engine, task={**TASK, **choice})
    viewer = site.browser("viewer")
    assert "Lengths of answers" not in viewer.get(f"/jobs/{job}").text
    answered = AnswerCounts((0, 5, 3), (6, 2))
    world.run(spending.report, "w", [Spent(job, 1, 8, 8, 11, answered=answered)])
    site.app.state.answers._seen.clear()  # as after LOOK_SECONDS
    page = viewer.get(f"/jobs/{job}").text
    assert "8 counted, by output tokens 1 5 62 % 2 to 3 3 38 %" in text(page)
    assert "8 counted yes 6 75 % no &lt;b&gt; 2 25 %" in text(page)
