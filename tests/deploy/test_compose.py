"""docker-compose.yml, as Docker Compose itself reads it; no container engine is needed for that."""

import json
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

from nightshift.common.settings import Settings, load_settings
from tests.deploy.commands import refusal, settings_variables
from tests.deploy.images import (
    IMAGES,
    ROOT,
    exec_form,
    inherited,
    last,
    pairs,
    project,
)

FILE = ROOT / "docker-compose.yml"

OURS = {"migrate", "reaper", "serve", "worker", "worker-gpu", "demo", "cli"}
ONCE = {"migrate", "demo", "cli"}
WORKERS = {"worker", "worker-gpu"}

FOREIGN = {
    "postgres": r"POSTGRES_(USER|DB|PASSWORD)",
    "redis": r"REDIS_PASSWORD",
    "prometheus": r"NIGHTSHIFT_METRICS_KEY",
    "grafana": r"GF_[A-Z_]+",
    "worker": r"HF_TOKEN",
    "worker-gpu": r"HF_TOKEN",
}
"""Variables of a service that are not ours to read."""

WRITTEN = {
    "postgres": {"/var/lib/postgresql", "/run/postgresql", "/tmp"},
    "redis": {"/data", "/tmp"},
    "prometheus": {"/prometheus", "/run/secrets", "/tmp"},
    "grafana": {"/var/lib/grafana", "/tmp"},
}
"""All that a foreign image writes to: the volumes of its Dockerfile, the folder of Postgres's socket
(/var/run there, a link to /run), the key that our entrypoint makes for Prometheus, and /tmp. From the
Dockerfiles of docker-library/postgres (18), docker-library/redis (8), prometheus and grafana.
"""

SECRET = re.compile(r"PASSWORD|KEY|TOKEN|SECRET")

Service = dict[str, Any]


def _compose(
    *words: str, env_file: Path, files: tuple[Path, ...] = (FILE,)
) -> subprocess.CompletedProcess[str]:
    """Docker Compose of the development tools. Its own script drops the exit code, so not by that."""
    found = find_spec("compose")
    assert found is not None
    assert found.origin is not None
    command = [Path(found.origin).with_name("docker-compose"), "--env-file", env_file]
    for file in files:
        command += ["--file", file]
    return subprocess.run(
        [*command, *words],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def env_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .env, made by the very command that .env.example shows."""
    folder = tmp_path_factory.mktemp("env")
    example = (ROOT / ".env.example").read_text()
    (folder / ".env.example").write_text(example)
    subprocess.run(["sh", "-c", _making_env(example, "#     ")], cwd=folder, check=True)
    return folder / ".env"


def _making_env(text: str, margin: str) -> str:
    """The command that makes .env, without what stands in front of its lines."""
    lines = re.search(rf"^{margin}\(umask .*\n{margin} +printf .*$", text, re.MULTILINE)
    assert lines is not None
    return "\n".join(line.removeprefix(margin) for line in lines[0].splitlines())


@pytest.fixture(scope="module")
def services(env_file: Path) -> dict[str, Service]:
    """Every service with all that it inherits, as Compose would run it."""
    ran = _compose("--profile", "*", "config", "--format", "json", env_file=env_file)
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Service] = json.loads(ran.stdout)["services"]
    assert set(found) > OURS
    return found


@cache
def _text() -> str:
    return FILE.read_text()


def test_the_file_fits_the_compose_specification() -> None:
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    ran = subprocess.run([*checker, FILE], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("profiles", "running"),
    [
        ((), {"postgres", "redis", "migrate", "reaper", "serve"}),
        (("cpu",), {"postgres", "redis", "migrate", "reaper", "worker", "demo", "serve"}),
        (("gpu",), {"postgres", "redis", "migrate", "reaper", "worker-gpu", "serve"}),
        (
            ("gpu", "observe"),
            {
                "postgres",
                "redis",
                "migrate",
                "reaper",
                "worker-gpu",
                "prometheus",
                "grafana",
                "serve",
            },
        ),
    ],
)
def test_a_profile_has_its_services(
    profiles: tuple[str, ...], running: set[str], env_file: Path
) -> None:
    chosen = [word for profile in profiles for word in ("--profile", profile)]
    ran = _compose(*chosen, "config", "--services", env_file=env_file)
    assert ran.returncode == 0, ran.stderr
    assert set(ran.stdout.split()) == running


# Passwords.


def test_a_password_that_is_not_set_stops_everything_with_a_sentence(tmp_path: Path) -> None:
    for name in re.findall(r"^([A-Z_]+)=$", (ROOT / ".env.example").read_text(), re.MULTILINE):
        rest = (ROOT / ".env.example").read_text().replace(f"\n{name}=\n", "\n")
        some = tmp_path / "some.env"
        some.write_text(re.sub(r"=$", "=x", rest, flags=re.MULTILINE))
        ran = _compose("config", "--quiet", env_file=some)
        assert ran.returncode != 0
        assert f"{name} is missing a value: is not set. See .env.example" in ran.stderr


def test_passwords_are_made_and_each_is_another(env_file: Path) -> None:
    lines = re.findall(r"^([A-Z_]+)=(.*)$", env_file.read_text(), re.MULTILINE)
    assert len(lines) == 4
    assert all(re.fullmatch(r"[0-9a-f]{48}", value) for _, value in lines)
    assert len({value for _, value in lines}) == len(lines)
    assert env_file.stat().st_mode & 0o077 == 0


def test_no_password_stands_in_a_file_of_the_repository() -> None:
    plain = yaml.safe_load(_text())
    blocks = [*plain["services"].values(), *(v for k, v in plain.items() if k.startswith("x-"))]
    given = [(block.get("environment") or block) for block in blocks]
    for name, value in (pair for block in given for pair in block.items()):
        if SECRET.search(name):
            assert re.fullmatch(r"\$\{\w+(:\?[^}]+|:-)\}", value), name
        elif isinstance(value, str) and "://" in value:
            assert re.match(r"\w+://\w*:\$\{\w+:\?[^}]+\}@", value), name
    assert not re.search(r"[A-Z]=[^\s…]", re.sub("(?m)^#.*$", "", _example()))
    ignored = subprocess.run(["git", "check-ignore", "--quiet", ".env"], cwd=ROOT)
    assert ignored.returncode == 0
    tracked = subprocess.run(["git", "ls-files", ".env"], cwd=ROOT, capture_output=True, text=True)
    assert tracked.stdout == ""


def _example() -> str:
    return (ROOT / ".env.example").read_text()


def test_the_example_names_what_must_be_set_and_nothing_that_is_not_there() -> None:
    wanted = set(re.findall(r"\$\{(\w+):\?", _text()))
    optional = set(re.findall(r"\$\{(\w+):-", _text()))
    assert set(re.findall(r"^([A-Z_]+)=$", _example(), re.MULTILINE)) == wanted
    assert set(re.findall(r"^# ([A-Z_]+)=", _example(), re.MULTILINE)) <= optional
    assert not re.search(r"(?<!\$)\$[A-Za-z_]", _text()), "a variable without a default or a word"
    pages = (ROOT / "docs/containers.md").read_text() + _example()
    for name in optional:
        assert f"`{name}`" in pages or f"# {name}=" in pages, f"{name} is explained nowhere"


# What others can reach, and what a process may do.


def test_only_loopback_ports_are_published(services: dict[str, Service]) -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert set(published) == {"prometheus", "grafana", "serve"}
    for ports in published.values():
        assert [port["host_ip"] for port in ports] == ["127.0.0.1"]


def test_the_ledger_and_the_broker_are_on_a_network_that_leads_nowhere(
    services: dict[str, Service],
) -> None:
    assert yaml.safe_load(_text())["networks"]["inside"] == {"internal": True}
    for name in ("postgres", "redis"):
        assert set(services[name]["networks"]) == {"inside"}


def test_ours_reach_the_ledger_and_what_is_outside(services: dict[str, Service]) -> None:
    """A hub for weights, an object store, a server of the openai engine."""
    for name in OURS:
        wanted = {"inside"} if name == "migrate" else {"inside", "outside"}
        wanted |= {"screens"} if name == "serve" else set()
        assert set(services[name]["networks"]) == wanted, name
    assert yaml.safe_load(_text())["networks"]["outside"] == {}


def test_every_process_has_the_least(services: dict[str, Service]) -> None:
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        limits = service["deploy"]["resources"]["limits"]
        assert {"memory", "pids"} <= set(limits), name
        assert "privileged" not in service, name
        assert ":latest" not in service["image"], name
        assert re.search(r":v?\d", service["image"]), name
        assert service["restart"].startswith("on-failure") or service["restart"] == (
            "no" if name in ONCE else "unless-stopped"
        ), name
    # The images of Prometheus and Grafana bring their own user.
    for name in ("postgres", "redis"):
        assert services[name]["user"] not in ("root", "0"), name
    for name in OURS:
        assert "user" not in services[name], name


def test_what_our_images_write_is_on_a_tmpfs_or_a_volume(services: dict[str, Service]) -> None:
    for name in OURS:
        service = services[name]
        target = service["build"]["target"]
        places = {one.partition(":")[0] for one in service["tmpfs"]}
        places |= {volume["target"] for volume in service.get("volumes", [])}
        assert {"/tmp", "/run/nightshift"} <= places, name
        if name in WORKERS:
            for variable, value in pairs(inherited(target, "ENV")).items():
                if value.startswith("/cache"):
                    assert "/cache" in places, variable
        if name != "migrate":
            assert {"/data"} <= places, name
        owned = next(one for one in service["tmpfs"] if one.startswith("/run/nightshift"))
        assert "uid=10001,gid=10001" in owned, name


def test_what_foreign_images_write_is_on_a_tmpfs_or_a_volume(services: dict[str, Service]) -> None:
    assert set(WRITTEN) == set(services) - OURS
    for name, wanted in WRITTEN.items():
        places = {one.partition(":")[0] for one in services[name]["tmpfs"]}
        volumes = services[name].get("volumes", [])
        assert places | {one["target"] for one in volumes if one["type"] == "volume"} == wanted
    assert "--storage.tsdb.path=/prometheus" in services["prometheus"]["command"]


def test_files_in_memory_leave_half_of_it_to_the_process(
    services: dict[str, Service],
) -> None:
    """What goes to an object store is written to /tmp first; compilers load what they put there."""
    for name in OURS:
        options = _tmpfs(services[name])
        limit = int(services[name]["deploy"]["resources"]["limits"]["memory"])
        assert _bytes(options["/tmp"]["size"]) <= limit / 2, name
        assert _bytes(options["/run/nightshift"]["size"]) <= 2**26, name
        assert ("exec" in options["/tmp"]) == (name in WORKERS), name


def _tmpfs(service: Service) -> dict[str, dict[str, str]]:
    """Path to options of each file system in memory."""
    split = [one.partition(":") for one in service["tmpfs"]]
    return {
        path: dict(word.partition("=")[::2] for word in options.split(","))
        for path, _, options in split
    }


def _bytes(size: str) -> int:
    return int(size[:-1]) << {"m": 20, "g": 30}[size[-1]]


def test_everybody_sees_the_same_data_and_nothing_beside_it(services: dict[str, Service]) -> None:
    seen = {
        next(
            volume["source"] for volume in services[name]["volumes"] if volume["target"] == "/data"
        )
        for name in OURS - {"migrate"}
    }
    assert len(seen) == 1
    for name in OURS:
        assert services[name]["environment"]["NIGHTSHIFT_ALLOWED_ROOTS"] == "/data"


def test_postgres_keeps_its_data_where_18_has_it(services: dict[str, Service]) -> None:
    postgres = services["postgres"]
    assert re.fullmatch(r"postgres:1[89]", postgres["image"])
    assert [volume["target"] for volume in postgres["volumes"]] == ["/var/lib/postgresql"]
    assert "PGDATA" not in postgres["environment"]


@pytest.mark.parametrize("name", ["postgres", "redis"])
def test_a_foreign_image_is_the_same_in_the_cluster(
    name: str, services: dict[str, Service]
) -> None:
    manifests = yaml.safe_load_all((ROOT / f"k8s/overlays/cpu-demo/{name}.yaml").read_text())
    templates = [one["spec"]["template"]["spec"] for one in manifests if "template" in one["spec"]]
    images = [container["image"] for one in templates for container in one["containers"]]
    assert images == [services[name]["image"]]


# What is said to our own code.


def test_variables_are_read_by_somebody(services: dict[str, Service]) -> None:
    for name, service in services.items():
        for variable in service.get("environment", {}):
            foreign = re.fullmatch(FOREIGN.get(name, "(?!)"), variable)
            assert foreign or (name in OURS and variable in settings_variables()), (name, variable)


@pytest.mark.parametrize("name", sorted(OURS))
def test_the_settings_of_a_service_can_be_used(
    name: str, services: dict[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(services[name], monkeypatch)
    assert settings.database_url is not None
    assert settings.broker_url is not None
    assert settings.allowed_roots == ("/data",)
    if name not in ONCE | {"serve"}:
        assert settings.metrics_key is not None
        assert settings.metrics_host == "0.0.0.0"
        assert settings.metrics_port == int(last(services[name]["build"]["target"], "EXPOSE"))


def _settings(service: Service, monkeypatch: pytest.MonkeyPatch) -> Settings:
    for variable in settings_variables():
        monkeypatch.delenv(variable, raising=False)
    given = pairs(inherited(service["build"]["target"], "ENV")) | service["environment"]
    for variable, value in given.items():
        if variable in settings_variables():
            monkeypatch.setenv(variable, value)
    assert issubclass(Settings, BaseSettings)
    return load_settings()


@pytest.mark.parametrize("name", sorted(WORKERS))
def test_a_worker_has_the_time_that_it_may_take_to_leave(
    name: str, services: dict[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    grace = _seconds(services[name]["stop_grace_period"])
    assert grace > _settings(services[name], monkeypatch).leave_seconds


def _seconds(duration: str) -> float:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(float(n) * units[unit] for n, unit in re.findall(r"([\d.]+)([hms])", duration))


def test_every_command_is_one_of_ours_and_understands_its_words(
    services: dict[str, Service],
) -> None:
    for name in sorted(OURS - {"demo", "cli"}):
        service = services[name]
        assert service.get("entrypoint") is None, name
        entry = exec_form(last(service["build"]["target"], "ENTRYPOINT"))
        assert entry[:2] == ["tini", "--"]
        assert refusal([*entry[2:], *service["command"]]) is None


def test_the_demo_is_a_script_of_the_control_image(services: dict[str, Service]) -> None:
    tini, dashes, shell, script, folder = services["demo"]["entrypoint"]
    assert (tini, dashes, shell, folder) == ("tini", "--", "sh", "/data")
    copied = [value.split()[-2:] for value in inherited("control", "COPY")]
    sources = {target: source for source, target in copied}
    source = sources[str(Path(script).parent)].removeprefix("/src/")
    assert (ROOT / source / Path(script).name).exists()


def test_our_images_are_built_here_and_have_the_version_of_the_code(
    services: dict[str, Service],
) -> None:
    for name in OURS:
        service = services[name]
        target = service["build"]["target"]
        assert target in IMAGES
        assert service["image"] == f"nightshift/{target}:{project()['version']}"
        assert service["pull_policy"] == "never", "else a stranger's image of that name is pulled"


# Start, health, scale.


def test_what_stays_is_watched_and_what_is_waited_for_can_be_healthy(
    services: dict[str, Service],
) -> None:
    for name, service in services.items():
        given = service.get("healthcheck", {})
        if name in ONCE:
            assert given == {"disable": True}, name
        elif name == "serve":
            assert "/healthz" in given["test"][-1], "that of its image asks a reaper"
        elif name in OURS:
            assert given == {}, f"{name} has the health check of its image"
        else:
            assert given["test"][0].startswith("CMD"), name
        for other, wanted in service.get("depends_on", {}).items():
            if wanted["condition"] == "service_completed_successfully":
                assert other == "migrate"
            elif wanted["condition"] == "service_healthy":
                assert other not in ONCE
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    for name in OURS - {"migrate", "demo"}:
        waits = services[name]["depends_on"]
        assert waits["migrate"]["condition"] == "service_completed_successfully", name


def test_the_api_serves_the_engine_of_the_example_where_the_example_lays_its_model(
    services: dict[str, Service],
) -> None:
    for name in ("serve", "reaper"):
        table = services[name]["environment"]["NIGHTSHIFT_SERVE_MODELS"]
        assert table == "/usr/share/nightshift/examples/reviews/models-containers.yaml", name
    engine = yaml.safe_load((ROOT / "examples/reviews/job.yaml").read_text())["engine"]
    engine["model"] = f"{services['demo']['entrypoint'][-1]}/{engine['model']}"
    table = yaml.safe_load((ROOT / "examples/reviews/models-containers.yaml").read_text())
    assert table["models"]["reviews"]["engine"] == engine


def test_workers_can_be_many_and_reapers_are_two(services: dict[str, Service]) -> None:
    assert services["reaper"]["deploy"]["replicas"] == 2
    for name in ("worker", "reaper"):
        assert "container_name" not in services[name]
        assert "hostname" not in services[name]
        assert "ports" not in services[name]


def test_the_gpu_worker_gets_every_gpu_and_shared_memory(services: dict[str, Service]) -> None:
    resources = services["worker-gpu"]["deploy"]["resources"]
    assert resources["reservations"]["devices"] == [
        {"capabilities": ["gpu"], "count": -1, "driver": "nvidia"}
    ]
    for name in WORKERS:
        assert int(services[name]["shm_size"]) >= 2**30


# Prometheus and Grafana.


def test_files_that_are_mounted_are_in_the_repository(services: dict[str, Service]) -> None:
    mounted = [
        volume
        for service in services.values()
        for volume in service.get("volumes", [])
        if volume["type"] == "bind"
    ]
    assert len(mounted) == 4
    for volume in mounted:
        assert Path(volume["source"]).exists(), volume["source"]
        assert volume["read_only"]


def test_prometheus_finds_its_targets_and_its_key(services: dict[str, Service]) -> None:
    jobs = yaml.safe_load((ROOT / "observe/prometheus/prometheus.yml").read_text())[
        "scrape_configs"
    ]
    asked = set()
    for job in jobs:
        file = job["authorization"]["credentials_file"]
        script = services["prometheus"]["entrypoint"][2]
        assert f"> {file}\n" in script
        folders = [one.partition(":")[0] for one in services["prometheus"]["tmpfs"]]
        assert str(Path(file).parent) in folders
        for lookup in job["dns_sd_configs"]:
            asked |= set(lookup["names"])
            assert str(lookup["port"]) == last("control", "EXPOSE")
    assert asked == OURS - ONCE - {"serve"}
    for name in asked:
        shared = set(services[name]["networks"]) & set(services["prometheus"]["networks"])
        assert shared == {"inside"}, "two shared networks would give a container two addresses"


# What docs/containers.md says to do.


def _page() -> str:
    return (ROOT / "docs/containers.md").read_text()


def test_the_page_makes_passwords_as_the_example_does() -> None:
    assert _making_env(_page(), "") == _making_env(_example(), "#     ")


def test_the_override_of_the_page_can_be_laid_over(env_file: Path, tmp_path: Path) -> None:
    override = tmp_path / "docker-compose.override.yml"
    blocks = re.findall(r"```yaml\n(.*?)```", _page(), re.DOTALL)
    assert len(blocks) == 1
    override.write_text(blocks[0])
    more = tmp_path / ".env"
    more.write_text(env_file.read_text() + "\nAWS_REGION=here\n")
    words = ("--profile", "*", "config", "--format", "json")
    ran = _compose(*words, env_file=more, files=(FILE, override))
    assert ran.returncode == 0, ran.stderr
    for name in ("reaper", "serve", "worker", "worker-gpu", "cli"):
        environment = json.loads(ran.stdout)["services"][name]["environment"]
        assert environment["AWS_REGION"] == "here"
        assert environment["NIGHTSHIFT_ALLOWED_ROOTS"] == "/data"


def test_the_page_and_the_file_name_profiles_and_services_that_there_are(
    services: dict[str, Service],
) -> None:
    profiles = {one for service in services.values() for one in service.get("profiles", [])}
    lines = re.findall(r"^(?:#     )?docker compose (.*)", _page() + _text(), re.MULTILINE)
    assert len(lines) > 12
    for line in lines:
        chosen = set(re.findall(r"--profile (\w+)", line))
        assert chosen <= profiles, line
        named = re.findall(r"--scale ([\w-]+)=\d", line) + re.findall(r"run --rm ([\w-]+)", line)
        for name in named:
            wanted = set(services[name].get("profiles", chosen))
            assert "run" in line.split() or not wanted or wanted & chosen, line
    for words in re.findall(r"run --rm cli (.+?)(?: +#.*)?$", _page(), re.MULTILINE):
        assert refusal(["nightshift", *words.split()]) is None, words
