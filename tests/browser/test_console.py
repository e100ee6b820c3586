"""Every page and every action of the console, as a person meets them."""

import json
import re
from collections.abc import Callable

import psycopg
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import Person, ended, key, submit
from tests.support.fleet import write_rows
from tests.support.serve import Door

pytestmark = pytest.mark.slow

Opened = Callable[..., Person]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"

LONG = 240_000
"""Milliseconds that a worker may take for a load or a job on a machine with much else to do."""

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}
"""What axe looks at: contrast, names and roles."""

KINDS = {
    "light": {"color_scheme": "light", "viewport": {"width": 1280, "height": 900}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1280, "height": 900}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}},
}
"""Windows in which each page is looked at."""


def pages(job: int, batch: str) -> dict[str, str]:
    """Every page by the name of its picture."""
    return {
        "jobs": "/",
        "jobs-none": "/?name=nothing-has-this-name",
        "new": "/jobs/new",
        "new-yaml": "/jobs/new?as=yaml",
        "job": f"/jobs/{job}",
        "job-batch": f"/jobs/{job}/batches/1",
        "rows": f"/jobs/{job}/rows",
        "rows-any": f"/jobs/{job}/rows?which=any",
        "failed": f"/jobs/{job}/failed",
        "batches": "/batches",
        "batch": f"/batches/{batch}",
        "files": "/files",
        "fleet": "/fleet",
        "changes": "/audit",
    }


def batch_of(door: Door, secret: str) -> str:
    """A batch of the API, over."""
    client = door.client(secret)
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    rows = [{**line, "body": {"model": "m", "messages": [{"role": "user", "content": HOSTILE}]}}]
    data = "".join(f"{json.dumps(row)}\n" for row in rows)
    file = client.files.create(file=("a.jsonl", data.encode()), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    door.ended(client, made.id)
    return str(made.id)


def no_violations(page: Page, name: str) -> None:
    found = Axe().run(page, options=RULES).response["violations"]
    said = [(each["id"], [node["target"] for node in each["nodes"]]) for each in found]
    assert said == [], name


def test_every_page_is_readable_in_light_and_dark_and_on_a_phone(
    site: Door, person: Opened
) -> None:
    site.worker("--pool", "default")
    secret = key(site, "ops", "operator")
    job = submit(site, "picky", "picky")
    submit(site, "slow", "slow")
    ended(site, job)
    batch = batch_of(site, secret)
    for kind, options in KINDS.items():
        somebody = person(**options)
        somebody.open("/login")
        no_violations(somebody.page, f"login, {kind}")
        somebody.picture(f"login-{kind}")
        somebody.login(secret)
        for name, path in pages(job, batch).items():
            page = somebody.open(path)
            page.wait_for_timeout(300)  # the first frame of the live part
            somebody.picture(f"{name}-{kind}")
            no_violations(page, f"{name}, {kind}")
            wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
            assert wide <= 0, f"{name} scrolls sideways, {kind}"
    page.goto(f"/jobs/{job}")
    # A bar is a stroke, which has no height of its own for Playwright.
    page.locator(".lane svg").first.scroll_into_view_if_needed()
    x, y = page.locator(".lane a path").first.evaluate(
        "(bar) => { const box = bar.getBoundingClientRect(); return [box.x + box.width / 2, box.y]; }"
    )
    page.mouse.click(x, y)
    expect(page).to_have_url(re.compile(rf"/jobs/{job}/batches/\d+$"))


def test_jobs_are_moved_alone_and_together(site: Door, person: Opened) -> None:
    secret = key(site, "ops", "operator")
    jobs = [submit(site, name) for name in ("one", "two", "three")]
    somebody = person()
    somebody.login(secret)
    page = somebody.page
    for job in jobs[:2]:
        page.get_by_label(f"Pick job {job}").check()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".state.paused")).to_have_count(2)
    page.get_by_label("State").select_option("paused")
    page.get_by_role("button", name="Filter").click()
    expect(page).to_have_url(f"{somebody.base}/?name=&status=paused&tenant=")
    expect(page.get_by_role("link", name="three")).to_have_count(0)
    page.get_by_role("link", name="one").click()
    expect(page.get_by_text("It is paused by")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("no worker of the pool default is alive", exact=False)).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("It is cancelled")).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    page.get_by_role("link", name="Changes").click()
    expect(page.locator("tbody tr")).to_have_count(9)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    page.goto("/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_job_is_made_from_a_file_of_somebody(site: Door, person: Opened) -> None:
    site.worker("--pool", "default")
    somebody = person()
    somebody.login(key(site, "ops", "operator"))
    page = somebody.page
    page.get_by_role("link", name="New job").click()
    page.get_by_label("Rows of this machine").set_input_files(
        {
            "name": "birds.csv",
            "mimeType": "text/csv",
            "buffer": b"".join(b"a-%d,bird %d\n" % (row, row) for row in range(-1, 40)).replace(
                b"a--1,bird -1", b"id,text"
            ),
        }
    )
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_label("First rows").get_by_text("bird 3", exact=True)).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_have_value("birds")
    somebody.picture("new-first-rows")
    no_violations(page, "first rows")
    page.get_by_label("Prompt, a template").fill("Say ")
    page.get_by_role("button", name="{{ text }}").click()
    page.get_by_role("combobox", name="Model", exact=True).select_option("m")
    page.get_by_role("button", name="Show first prompts").click()
    expect(page.get_by_label("First prompts")).to_contain_text("Say bird 3")
    somebody.picture("new-first-prompts")
    no_violations(page, "first prompts")
    page.get_by_role("button", name="Let id name the rows").click()
    page.get_by_label("Prompt, a template").fill("")
    page.get_by_role("combobox", name="Model", exact=True).select_option("")
    page.get_by_text("Another model, or a Python function").click()
    page.get_by_label("Or a Python function").fill("rules:nothing there")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("engine.callable")
    page.get_by_label("Or a Python function").fill("rules:shout")
    page.get_by_role("button", name="Estimate").click()
    expect(page.get_by_label("Estimate")).to_contain_text("40 in 1 batch")
    somebody.picture("new-estimate")
    no_violations(page, "estimate")
    page.get_by_label("Rows of a pilot").fill("5")
    with somebody.context.expect_page() as tab:
        page.get_by_role("button", name="Run a pilot").click()
    pilot = tab.value
    expect(pilot.get_by_role("heading", name="birds-pilot")).to_be_visible()
    expect(pilot.get_by_label("Why")).to_contain_text("every row has an answer", timeout=LONG)
    pilot.close()
    page.get_by_role("button", name="Go on as YAML").click()
    expect(page.get_by_label("What nightshift submit takes")).to_contain_text(
        "callable: rules:shout"
    )
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="birds")).to_be_visible()
    expect(page.get_by_label("Why")).to_contain_text("every row has an answer", timeout=LONG)
    page.reload()  # what the page offers to take is that of when the page was opened
    for kind in ("Parquet", "JSONL", "CSV"):
        with page.expect_download() as download:
            page.get_by_label("Results", exact=True).get_by_role("link", name=kind).first.click()
        taken = download.value.path().read_bytes()
        assert taken.startswith(b"PAR1") if kind == "Parquet" else b"BIRD 3" in taken
    page.goto(f"{page.url.partition('?')[0].rstrip('/')}/rows?row=3")
    expect(page.get_by_role("heading", name="Row 3 a-3")).to_be_visible()
    expect(page.locator("dl.out")).to_contain_text("BIRD 3")
    assert sorted((site.folder / "store/ops/outputs").glob("birds-*/part-*")), "nobody typed it"
    page.goto("/jobs/999")
    expect(page.get_by_role("alert")).to_contain_text("here is no job")
    somebody.picture("message")
    no_violations(page, "message")
    refused = [each for each in somebody.complaints if "status of 40" in each]
    assert somebody.complaints == refused, "the two pages that refuse something"
    somebody.complaints.clear()


def test_a_machine_is_drained_and_many_jobs_go_on_and_end(site: Door, person: Opened) -> None:
    site.start("tests.browser.on_host", "gpu-1", "--pool", "default")
    secret = key(site, "ops", "operator")
    write_rows(site.folder / "many", [("a.jsonl", 20_000)])
    many = {"uri": str(site.folder / "many")}
    jobs = [submit(site, name, "slow", input=many) for name in ("one", "two")]
    somebody = person()
    somebody.login(secret)
    page = somebody.page

    def together(do: str, paused: int, cancelled: int = 0) -> None:
        for job in jobs:
            page.get_by_label(f"Pick job {job}").check()
        page.get_by_role("button", name=do).click()
        expect(page.locator(".state.paused")).to_have_count(paused)
        expect(page.locator(".state.cancelled")).to_have_count(cancelled)

    together("Pause", paused=2)
    together("Resume", paused=0)
    page.get_by_role("link", name="Fleet").click()
    machine = page.get_by_label("Machine gpu-1")
    machine.locator("summary", has_text="Slots").click()
    machine.get_by_role("button", name="Drain").click()
    expect(machine.locator("tbody")).to_contain_text("free", timeout=LONG)
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name="one").click()
    expect(page.get_by_label("Why")).to_contain_text("cordoned", timeout=LONG)
    page.get_by_role("link", name="Jobs").click()
    together("Cancel", paused=0, cancelled=2)
    page.get_by_role("link", name="Changes").click()
    for word in ("drain", "resume", "cancel"):
        expect(page.locator("tbody")).to_contain_text(word)


def test_a_batch_and_its_files(site: Door, person: Opened) -> None:
    site.worker("--pool", "default")
    secret = key(site, "acme", "user")
    batch = batch_of(site, secret)
    somebody = person(accept_downloads=True)
    somebody.login(secret)
    page = somebody.page
    page.get_by_role("link", name="Batches").click()
    page.get_by_role("link", name=batch).click()
    expect(page.locator(".state.done")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("row", name="Requests").get_by_role("link").click()
    assert HOSTILE in download.value.path().read_text()
    page.get_by_role("link", name="Batches").click()
    page.get_by_role("link", name="Files").click()
    rows = page.locator("tbody tr")
    before = rows.count()
    page.get_by_role("button", name="Delete").first.click()
    expect(rows).to_have_count(before - 1)


def test_somebody_new_finds_out_why_a_job_stands_still_and_mends_it(
    site: Door, person: Opened
) -> None:
    """A model that does not load on one host, while the other is cordoned; then rows that failed."""
    secret = key(site, "ops", "operator")
    allowed = site.environment.pop("NIGHTSHIFT_ALLOWED_MODULES")
    site.start("tests.browser.on_host", "gpu-1", "--pool", "default")
    site.environment["NIGHTSHIFT_ALLOWED_MODULES"] = allowed
    site.start("tests.browser.on_host", "gpu-2", "--pool", "default")
    somebody = person(viewport={"width": 1280, "height": 900})
    somebody.login(secret)
    page = somebody.page
    page.get_by_role("link", name="Fleet").click()
    machine = page.get_by_label("Machine gpu-2")
    machine.locator("summary", has_text="Slots").click()
    machine.get_by_role("button", name="Cordon").click()
    expect(machine.get_by_role("button", name="Uncordon")).to_be_visible()

    job = submit(site, "tickets", "picky")
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name="tickets").click()
    why = page.get_by_label("Why")
    expect(why).to_contain_text("could not be loaded on gpu-1", timeout=LONG)
    expect(why).to_contain_text("rules")
    somebody.picture("story-1-why")
    page.get_by_role("link", name="Fleet").click()
    expect(machine).to_contain_text("cordoned")
    somebody.picture("story-2-fleet")
    machine.get_by_role("button", name="Uncordon").click()
    expect(machine.get_by_role("button", name="Uncordon")).to_have_count(0)
    page.get_by_role("link", name="Jobs").click()
    page.get_by_role("link", name="tickets").click()
    expect(why).to_contain_text("6 of 60 rows failed", timeout=LONG)
    somebody.picture("story-3-failed")

    page.get_by_role("link", name="6 function_error").click()
    expect(page.get_by_text("a seven").first).to_be_visible()
    page.get_by_role("link", name="7", exact=True).click()
    expect(page.get_by_text("say a-7", exact=True)).to_be_visible()
    page.go_back()
    page.wait_for_load_state()
    (site.folder / "mended").touch()  # somebody has mended what the rows met
    page.get_by_role("button", name="Run 6 of kind function_error again").click()
    expect(why).to_contain_text("every row has an answer", timeout=LONG)
    somebody.picture("story-4-done")
    ended(site, job)


def test_a_viewer_finds_nothing_to_press_and_a_keyboard_is_enough(
    site: Door, person: Opened
) -> None:
    viewer, operator = key(site, "acme", "viewer"), key(site, "ops", "operator")
    site.worker("--pool", "default")
    job = submit(site, "one", "picky")
    ended(site, job)
    batch = batch_of(site, key(site, "acme", "user"))
    write_rows(site.folder / "many", [("a.jsonl", 20_000)])
    running = submit(site, "two", "slow", input={"uri": str(site.folder / "many")})
    with psycopg.connect(site.environment["NIGHTSHIFT_DATABASE_URL"]) as connection:
        connection.execute("UPDATE jobs SET tenant = 'acme'")
    somebody, boss = person(), person()
    somebody.login(viewer)
    boss.login(operator)
    numbers = (job, running)
    paths = ["/", *(f"/jobs/{each}" for each in numbers), f"/jobs/{job}/failed", "/fleet", "/files"]
    for path in paths:
        page = somebody.open(path)
        buttons = page.get_by_role("button").all_text_contents()
        assert set(buttons) <= {"Sign out", "Filter", "Show"}, path
        boss.open(path).evaluate(
            "document.querySelectorAll('details').forEach((each) => each.open = true)"
        )
        more = boss.page.get_by_role("button").all_text_contents()
        assert set(more) - {"Sign out", "Filter", "Show"}, (
            f"an operator has something to press: {path}"
        )
    assert somebody.open(f"/batches/{batch}").get_by_role("button").count() == 1
    page = boss.open("/")
    reached: set[str] = set()
    wanted = {"To the content", "Jobs", "Fleet", "Changes", "Sign out", "Pause", "Cancel", "one"}
    # A page that is drawn anew meanwhile may begin from its top.
    for _ in range(200):
        if wanted <= reached and page.get_by_label(f"Pick job {running}").is_checked():
            break
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(document.activeElement.getAttribute('aria-label') || "
                "document.activeElement.textContent || document.activeElement.name || '').trim()"
            )
        )
        on_it = page.evaluate("document.activeElement.id") == f"pick-{running}"
        if on_it and not page.get_by_label(f"Pick job {running}").is_checked():
            page.keyboard.press("Space")
    assert wanted <= reached
    expect(page.get_by_label(f"Pick job {running}")).to_be_checked()
    page.get_by_role("button", name="Pause").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".state.paused")).to_be_visible()


def test_what_rows_hold_is_text_and_is_never_run(site: Door, person: Opened) -> None:
    rows = [{"id": f"{number}", "text": HOSTILE} for number in range(3)]
    source = site.folder / "in" / "a.jsonl"
    source.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    site.worker("--pool", "default")
    secret = key(site, "ops", "operator")
    job = submit(site, "hostile")
    ended(site, job)
    somebody = person()
    dialogs: list[str] = []
    somebody.page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    somebody.login(secret)
    for path in (f"/jobs/{job}/rows", f"/jobs/{job}/rows?which=any", f"/jobs/{job}/rows?row=1"):
        page = somebody.open(path)
        expect(
            page.get_by_text("<script>alert(1)</script>").locator("visible=true").first
        ).to_be_visible()
        assert page.locator("main script, main img[onerror]").count() == 0
    assert dialogs == []


def test_a_page_that_nobody_sees_asks_for_nothing_and_one_that_stays_open_does_not_grow(
    site: Door, person: Opened
) -> None:
    site.worker("--pool", "default")
    secret = key(site, "ops", "operator")
    job = submit(site, "picky", "picky")
    ended(site, job)
    somebody = person()
    somebody.login(secret)
    page = somebody.open(f"/jobs/{job}")
    tools = somebody.context.new_cdp_session(page)

    def size() -> dict[str, float]:
        tools.send("HeapProfiler.collectGarbage")
        found = tools.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in found}

    # A night of changes in seconds: the same swap that an answer makes.
    swap = """async (count) => {
        const part = document.getElementById("live");
        const html = part.innerHTML;
        for (let frame = 0; frame < count; frame += 1) {
            htmx.swap(part, html, {swapStyle: "innerHTML"});
            if (frame % 50 === 0) await new Promise((done) => setTimeout(done, 1));
        }
        await new Promise((done) => setTimeout(done, 500));
    }"""
    tools.send("Performance.enable")
    page.evaluate(swap, 1000)
    before = size()
    page.evaluate(swap, 3000)
    after = size()
    assert after["Nodes"] < before["Nodes"] * 1.2 + 500
    assert after["JSEventListeners"] < before["JSEventListeners"] * 1.2 + 50
    assert after["JSHeapUsedSize"] < before["JSHeapUsedSize"] * 1.3 + 1_000_000

    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    hide = """(hidden) => {
        Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(hide, True)
    page.wait_for_timeout(1500)
    asked.clear()
    page.wait_for_timeout(2500)
    assert asked == []
    page.evaluate("document.getElementById('live').firstElementChild.dataset.mark = 'once'")
    with page.expect_response(lambda each: "/live/" in each.url and each.status == 304):
        page.evaluate(hide, False)
    page.wait_for_timeout(500)
    assert page.locator("#live > [data-mark=once]").count() == 1, "what is the same is not drawn"

    with psycopg.connect(site.environment["NIGHTSHIFT_DATABASE_URL"]) as connection:
        connection.execute("UPDATE api_keys SET revoked_at = now()")
    expect(page).to_have_url(re.compile("/login"), timeout=60_000)
    somebody.complaints = [each for each in somebody.complaints if "401" not in each]
