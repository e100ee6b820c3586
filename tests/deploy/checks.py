"""What must hold for the objects of an overlay: each check gives one sentence a fault."""

import functools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import PurePosixPath
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator

from nightshift.common.settings import Settings
from nightshift.common.telemetry import listener
from nightshift.producer.serve import app
from tests.deploy import images
from tests.deploy.commands import refusal
from tests.deploy.kustomize import ROOT, Object
from tests.deploy.schemas import schema_of

KUBERNETES = "1.37"

OURS = ("nightshift/control", "nightshift/worker-gpu", "nightshift/worker-cpu")

MADE_BY_THE_USER = {"nightshift", "nightshift-keda"}
"""Secrets that docs/kubernetes.md has the user make; optional ones need not be there at all."""

LEAST_SLACK_SECONDS = 15
LEAST_START_SECONDS = 30 * 60
LEAST_TIMEOUT_SECONDS, LEAST_FAILURES, LEAST_PERIOD_SECONDS = 5, 3, 5

WRITES = {"worker": ("/cache", "/run", "/tmp"), "reaper": ("/run", "/tmp")}
"""What a role writes to of that which its image names in variables; a reaper has no models."""

PHASE = "__meta_kubernetes_pod_phase"

NEEDS_PORT = {"NIGHTSHIFT_DATABASE_URL": 5432, "NIGHTSHIFT_BROKER_URL": 6379}

Faults = Iterator[str]


# Looking things up.


def name_of(thing: Object) -> str:
    return f"{thing['kind']}/{thing['metadata']['name']}"


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [thing for thing in objects if thing["kind"] in kinds]


def templates(objects: list[Object]) -> list[tuple[str, Object]]:
    """Name of the owner, and the template, of every kind of pod."""
    return [
        (name_of(thing), thing["spec"]["template"])
        for thing in of_kind(objects, "Deployment", "StatefulSet", "Job")
    ]


def containers(template: Object) -> list[Object]:
    spec = template["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def is_ours(container: Object) -> bool:
    return container["image"].partition(":")[0] in OURS


def component(template: Object) -> str:
    return str(template["metadata"]["labels"]["app.kubernetes.io/component"])


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector fits; an empty one fits all."""
    for wanted in selector.get("matchExpressions", []):
        assert wanted["operator"] == "In", wanted
        if labels.get(wanted["key"]) not in wanted["values"]:
            return False
    exact = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in exact.items())


def selected(objects: list[Object], selector: Object) -> list[Object]:
    return [
        template
        for _, template in templates(objects)
        if selects(selector, template["metadata"]["labels"])
    ]


def settings_of(objects: list[Object], container: Object) -> dict[str, str]:
    """What the container's ConfigMaps set, and its own variables over them."""
    maps = {thing["metadata"]["name"]: thing["data"] for thing in of_kind(objects, "ConfigMap")}
    found: dict[str, str] = {}
    for source in container.get("envFrom", []):
        found |= maps.get(source.get("configMapRef", {}).get("name"), {})
    return found | {
        variable["name"]: variable["value"]
        for variable in container.get("env", [])
        if variable["name"].startswith("NIGHTSHIFT_") and "value" in variable
    }


# The checks.


def fits_its_schema(objects: list[Object]) -> Faults:
    for thing in objects:
        for fault in unfit(json.dumps(thing)):
            yield f"{name_of(thing)}: {fault}"


@functools.cache
def unfit(written: str) -> tuple[str, ...]:
    """What an object's schema refuses; most objects stand in several overlays alike."""
    thing = json.loads(written)
    schema = schema_of(thing)
    if schema is not None:
        errors = Draft202012Validator(schema).iter_errors(thing)
        return tuple(f"{error.json_path}: {error.message}" for error in errors)
    try:
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return (f"{list(error.path)}: {error.message}",)
    except kubernetes_validate.SchemaNotFoundError as error:
        return (error.message,)
    return ()


RESTRICTED_VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}


def is_restricted(objects: list[Object]) -> Faults:
    """The profile `restricted` of the Pod Security Standards, v1.37, for Linux pods."""
    for owner, template in templates(objects):
        spec = template["spec"]
        for forbidden in ("hostNetwork", "hostPID", "hostIPC"):
            if spec.get(forbidden):
                yield f"{owner}: {forbidden}"
        if spec.get("securityContext", {}).get("sysctls"):
            yield f"{owner}: sysctls"
        for volume in spec.get("volumes", []):
            for kind in volume.keys() - {"name"} - RESTRICTED_VOLUMES:
                yield f"{owner}: volume {volume['name']} is a {kind}"
        for container in containers(template):
            for fault in unrestricted(container, spec.get("securityContext", {})):
                yield f"{owner}/{container['name']}: {fault}"
    for thing in of_kind(objects, "Namespace"):
        labels = thing["metadata"]["labels"]
        if labels.get("pod-security.kubernetes.io/enforce") != "restricted":
            yield f"{name_of(thing)}: does not enforce the profile"


def unrestricted(container: Object, of_pod: Object) -> Faults:
    """What the profile refuses in one container; some fields may be set for the whole pod."""
    own = container.get("securityContext", {})
    both = of_pod | own
    capabilities = own.get("capabilities", {})
    if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
        yield "may run as root"
    if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield "no seccomp profile"
    if own.get("allowPrivilegeEscalation") is not False or own.get("privileged"):
        yield "may gain privileges"
    if capabilities.get("drop") != ["ALL"]:
        yield "keeps capabilities"
    if set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}:
        yield "adds capabilities"
    if any("hostPort" in port for port in container.get("ports", [])):
        yield "a host port"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"


def is_shut(objects: list[Object]) -> Faults:
    """Beyond the profile: a root file system that is only read, no token, no foreign variables."""
    for owner, template in templates(objects):
        if template["spec"].get("automountServiceAccountToken") is not False:
            yield f"{owner}: mounts a token"
        if template["spec"].get("enableServiceLinks") is not False:
            yield f"{owner}: takes variables from the names of services"
        for container in containers(template):
            if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
                yield f"{owner}/{container['name']}: a root file system that can be written"
            if "/tmp" not in {mount["mountPath"] for mount in container["volumeMounts"]}:
                yield f"{owner}/{container['name']}: no /tmp"
    for thing in of_kind(objects, "Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"):
        yield f"{name_of(thing)}: nothing here needs rights"


def sets_what_is_read(objects: list[Object]) -> Faults:
    known = {
        (
            field.validation_alias.choices[-1] if field.validation_alias else f"NIGHTSHIFT_{name}"
        ).upper()  # type: ignore[union-attr]
        for name, field in Settings.model_fields.items()
    }
    for owner, template in templates(objects):
        for container in filter(is_ours, containers(template)):
            where = f"{owner}/{container['name']}"
            words = " ".join(container.get("args", []))
            for variable in container.get("env", []):
                name = variable["name"]
                if name not in known and f"$({name})" not in words:
                    yield f"{where}: nobody reads {name}"
                key = variable.get("valueFrom", {}).get("secretKeyRef", {}).get("key", name)
                if key != name:
                    yield f"{where}: {name} comes from the key {key}"
            given = settings_of(objects, container)
            for name in given.keys() - known:
                yield f"{where}: nobody reads {name}"
            try:
                Settings(
                    **{name.removeprefix("NIGHTSHIFT_").lower(): given[name] for name in given}
                )
            except ValueError as error:
                yield f"{where}: {error}"
    for thing in of_kind(objects, "Secret"):
        for name in thing["data"]:
            if name.startswith("NIGHTSHIFT_") and name not in known:
                yield f"{name_of(thing)}: nobody reads {name}"


IDLE = ["sleep", "infinity"]
"""What the client's pod does until somebody gives a command in it."""


def runs_commands_that_exist(objects: list[Object]) -> Faults:
    for owner, template in templates(objects):
        for container in filter(is_ours, containers(template)):
            where = f"{owner}/{container['name']}"
            for line in command_lines(container):
                fault = refusal(line)
                if fault is not None:
                    yield f"{where}: `{' '.join(line)}`: {fault}"
            for script in scripts(container):
                if not (ROOT / script.removeprefix(SHIPPED)).is_file():
                    yield f"{where}: there is no {script}"


SHIPPED = "/usr/share/nightshift/"
"""Where the images keep what they ship of examples/."""


def scripts(container: Object) -> list[str]:
    """Files that a shell is told to run."""
    words = container.get("command", [])
    return [word for word in words[1:2] if words[0] == "sh" and word.startswith("/")]


def command_lines(container: Object) -> Iterator[list[str]]:
    """Every command line of ours that a container runs: main, probes, hooks, in a shell or not."""
    if "command" not in container:
        control = container["image"].startswith("nightshift/control")
        yield ["nightshift" if control else "nightshift-worker", *container.get("args", [])]
    hooks = [
        container.get("lifecycle", {}).get("preStop"),
        container.get("lifecycle", {}).get("postStart"),
    ]
    probes = [container.get(f"{kind}Probe") for kind in ("startup", "liveness", "readiness")]
    lines = [part["exec"]["command"] for part in [*hooks, *probes] if part and "exec" in part]
    lines += [container["command"]] if container.get("command", IDLE) != IDLE else []
    for line in lines:
        if line[0] != "sh":
            yield line
        elif line[1] == "-c":
            for call in re.findall(r"\bnightshift(?:-worker)? [a-z -]+", line[2]):
                yield shlex.split(call)


def leaves_in_time(objects: list[Object]) -> Faults:
    for owner, template in templates(objects):
        if component(template) != "worker":
            continue
        given = settings_of(objects, template["spec"]["containers"][0])
        settings = Settings(
            **{name.removeprefix("NIGHTSHIFT_").lower(): given[name] for name in given}
        )
        needed = settings.leave_seconds + LEAST_SLACK_SECONDS
        if template["spec"].get("terminationGracePeriodSeconds", 30) < needed:
            yield f"{owner}: is killed before the {needed:g} s that it may take to leave"


def is_watched(objects: list[Object]) -> Faults:
    for owner, template in templates(objects):
        container = template["spec"]["containers"][0]
        kind = component(template)
        probes = {"worker": ["startupProbe", "livenessProbe"], "reaper": ["livenessProbe"]}
        for probe in probes.get(kind, []):
            if "exec" not in container.get(probe, {}):
                yield f"{owner}: no {probe}"
        if kind == "worker":
            start = container.get("startupProbe", {"failureThreshold": 0, "periodSeconds": 0})
            if start["failureThreshold"] * start["periodSeconds"] < LEAST_START_SECONDS:
                yield f"{owner}: the startup probe does not wait for a model"
            if "exec" not in container.get("lifecycle", {}).get("preStop", {}):
                yield f"{owner}: does not drain before it stops"
            if "/dev/shm" not in {mount["mountPath"] for mount in container["volumeMounts"]}:
                yield f"{owner}: no shared memory"


def is_given_time(objects: list[Object]) -> Faults:
    """What docs/probes.md says of a probe: a busy or frozen machine answers late."""
    for owner, template in templates(objects):
        for container in filter(is_ours, containers(template)):
            for kind in ("startupProbe", "livenessProbe"):
                probe = container.get(kind)
                if probe is None:
                    continue
                if probe.get("timeoutSeconds", 1) < LEAST_TIMEOUT_SECONDS:
                    yield f"{owner}: its {kind} has no time to answer"
                if probe.get("failureThreshold", 3) < LEAST_FAILURES:
                    yield f"{owner}: its {kind} does not ask again"
                if probe.get("periodSeconds", 10) < LEAST_PERIOD_SECONDS:
                    yield f"{owner}: its {kind} asks all the time"


def runs_as_the_images_do(objects: list[Object]) -> Faults:
    """The user of the Dockerfile, and every folder that its images write to."""
    for owner, template in templates(objects):
        of_pod = template["spec"].get("securityContext", {})
        for container in filter(is_ours, containers(template)):
            where = f"{owner}/{container['name']}"
            target = container["image"].partition(":")[0].removeprefix("nightshift/")
            user, _, group = images.last(target, "USER").partition(":")
            own = of_pod | container.get("securityContext", {})
            if (str(own.get("runAsUser")), str(own.get("runAsGroup"))) != (user, group):
                yield f"{where}: is not the user {user}:{group} of its image"
            mounted = {PurePosixPath(mount["mountPath"]) for mount in container["volumeMounts"]}
            if len(mounted) > 1 and str(of_pod.get("fsGroup")) != group:
                yield f"{where}: its volumes do not belong to the group {group}"
            if component(template) not in WRITES or container not in template["spec"]["containers"]:
                continue
            variables = images.pairs(images.inherited(target, "ENV"))
            for folder in map(PurePosixPath, variables.values()):
                written = [PurePosixPath(top) for top in WRITES[component(template)]]
                if any(folder.is_relative_to(top) for top in written) and not any(
                    folder.is_relative_to(place) for place in mounted
                ):
                    yield f"{where}: {folder} of its image cannot be written"


def is_scraped_with_its_key(objects: list[Object]) -> Faults:
    """A PodMonitor asks where and with what the pods answer."""
    for thing in of_kind(objects, "PodMonitor"):
        keys = {
            (source["name"], source["key"])
            for template in selected(objects, thing["spec"]["selector"])
            for variable in template["spec"]["containers"][0]["env"]
            if variable["name"] == "NIGHTSHIFT_METRICS_KEY"
            for source in [variable["valueFrom"]["secretKeyRef"]]
        }
        for point in thing["spec"]["podMetricsEndpoints"]:
            if point.get("path", "/metrics") != listener.PATH:
                yield f"{name_of(thing)}: {point['path']} is not served"
            brought = point["authorization"]["credentials"]
            if {(brought["name"], brought["key"])} != keys:
                yield f"{name_of(thing)}: brings another key than {sorted(keys)}"
            if point["authorization"].get("type", "Bearer") != "Bearer":
                yield f"{name_of(thing)}: the key is a bearer token"
            kept = {"sourceLabels": [PHASE], "action": "keep", "regex": "Running"}
            if kept not in point.get("relabelings", []):
                yield f"{name_of(thing)}: a pod that pulls its image is a target"


def has_images_of_this_release(objects: list[Object]) -> Faults:
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for owner, template in templates(objects):
        for container in containers(template):
            image, _, tag = container["image"].partition(":")
            foreign = "/" not in image and tag not in ("", "latest")
            if not foreign and (image not in OURS or tag != release):
                yield f"{owner}/{container['name']}: {container['image']} is none of {release}"
        is_job = owner.startswith("Job/")
        if is_job and not owner.endswith(release.replace(".", "-")):
            yield f"{owner}: an upgrade to {release} could not change it"


def selects_its_own_pods(objects: list[Object]) -> Faults:
    for thing in of_kind(objects, "Deployment", "StatefulSet"):
        template = thing["spec"]["template"]
        if not selects(thing["spec"]["selector"], template["metadata"]["labels"]):
            yield f"{name_of(thing)}: does not select its own pods"
        near = template["spec"].get("affinity", {}).get("podAntiAffinity", {})
        terms = near.get("preferredDuringSchedulingIgnoredDuringExecution", [])
        apart = [term["podAffinityTerm"] for term in terms]
        for part in [*template["spec"].get("topologySpreadConstraints", []), *apart]:
            if selected(objects, part["labelSelector"]) != [template]:
                yield f"{name_of(thing)}: is not spread from its own kind"
    for kinds in (("Deployment", "StatefulSet"), ("PodDisruptionBudget",)):
        taken: dict[str, str] = {}
        for thing in of_kind(objects, *kinds):
            for owner, template in templates(objects):
                if selects(thing["spec"]["selector"], template["metadata"]["labels"]):
                    if owner in taken:
                        yield f"{name_of(thing)} and {taken[owner]} both select {owner}"
                    taken[owner] = name_of(thing)


def selects_what_has_its_ports(objects: list[Object]) -> Faults:
    for thing in of_kind(objects, "PodDisruptionBudget", "PodMonitor"):
        if not selected(objects, thing["spec"]["selector"]):
            yield f"{name_of(thing)}: selects nothing"
    for thing in of_kind(objects, "Service"):
        pods = selected(objects, {"matchLabels": thing["spec"]["selector"]})
        for port in thing["spec"]["ports"]:
            if not any(has_port(pod, port.get("targetPort", port["port"])) for pod in pods):
                yield f"{name_of(thing)}: no pod has its port"
    for thing in of_kind(objects, "PodMonitor"):
        pods = selected(objects, thing["spec"]["selector"])
        for point in thing["spec"]["podMetricsEndpoints"]:
            if not all(has_port(pod, point["port"]) for pod in pods):
                yield f"{name_of(thing)}: a pod has no port {point['port']}"


def leads_to_a_service(objects: list[Object]) -> Faults:
    """A route names a Service of its namespace by a port that the Service has."""
    ports = {
        (thing["metadata"]["namespace"], thing["metadata"]["name"], port["port"])
        for thing in of_kind(objects, "Service")
        for port in thing["spec"]["ports"]
    }
    for thing in of_kind(objects, "HTTPRoute"):
        for backend in (one for rule in thing["spec"]["rules"] for one in rule["backendRefs"]):
            name, port = backend["name"], backend["port"]
            if (thing["metadata"]["namespace"], name, port) not in ports:
                yield f"{name_of(thing)}: no service {name} has the port {port}"


def leads_to_what_is_served(objects: list[Object]) -> Faults:
    """Every path of the HTTP API passes a route, and nothing but the API does."""
    served = {route.path for route in app.ROUTES} | {"/openapi.json"}
    for thing in of_kind(objects, "HTTPRoute"):
        matches = [match["path"] for rule in thing["spec"]["rules"] for match in rule["matches"]]
        for path in sorted(served):
            if not any(fits(match, path) for match in matches):
                yield f"{name_of(thing)}: {path} cannot be reached"
        for match in matches:
            if not any(fits(match, path) for path in served):
                yield f"{name_of(thing)}: nothing is served under {match['value']}"


def fits(match: Object, path: str) -> bool:
    """Whether a path passes; a prefix is one of whole steps."""
    if match["type"] == "Exact":
        return bool(path == match["value"])
    return f"{path}/".startswith(f"{match['value']}/")


def listens_where_it_says(objects: list[Object]) -> Faults:
    for owner, template in templates(objects):
        for container in filter(is_ours, template["spec"]["containers"]):
            port = settings_of(objects, container).get("NIGHTSHIFT_METRICS_PORT")
            if container.get("args") == ["serve"]:  # which has the default port, and no metrics
                port = str(Settings.model_fields["serve_port"].default)
            named = [each["containerPort"] for each in container.get("ports", [])]
            if named != ([int(port)] if port else []):
                yield f"{owner}: names the ports {named} and listens on {port}"


def has_port(template: Object, port: int | str) -> bool:
    ports = [port for container in containers(template) for port in container.get("ports", [])]
    return port in {value for each in ports for value in (each["name"], each["containerPort"])}


def lets_through_what_is_used(objects: list[Object]) -> Faults:
    policies = of_kind(objects, "NetworkPolicy")
    for owner, template in templates(objects):
        mine = [
            policy["spec"]
            for policy in policies
            if selects(policy["spec"]["podSelector"], template["metadata"]["labels"])
        ]
        if {"Ingress", "Egress"} - {kind for policy in mine for kind in policy["policyTypes"]}:
            yield f"{owner}: is open"
        out = {
            port["port"]
            for policy in mine
            for rule in policy.get("egress", [])
            if not is_link_local(rule)
            for port in rule["ports"]
        }
        variables = {
            variable["name"]
            for container in containers(template)
            for variable in container.get("env", [])
        }
        used = {port for name, port in NEEDS_PORT.items() if name in variables}
        if is_ours(template["spec"]["containers"][0]):
            used |= {443} if component(template) != "migrate" else set()
        if out != used | {53}:
            yield f"{owner}: may reach the ports {sorted(out)} and uses {sorted(used | {53})}"
    for policy in policies:
        spec = policy["spec"]
        if spec["podSelector"] and not selected(objects, spec["podSelector"]):
            yield f"{name_of(policy)}: selects nothing"
        for rule in spec.get("ingress", []):
            for port in rule["ports"]:
                if not all(
                    has_port(pod, port["port"]) for pod in selected(objects, spec["podSelector"])
                ):
                    yield f"{name_of(policy)}: no port {port['port']}"
            for peer in rule["from"]:
                if "namespaceSelector" not in peer and not selected(objects, peer["podSelector"]):
                    yield f"{name_of(policy)}: lets nobody in"


def is_link_local(rule: Object) -> bool:
    """Whether it leads to services of the node and its cloud alone."""
    blocks = [peer.get("ipBlock", {}).get("cidr", "0.0.0.0/0") for peer in rule.get("to", [])]
    return bool(blocks) and all(ip_network(block).is_link_local for block in blocks)


def refers_to_what_is_there(objects: list[Object]) -> Faults:
    there = {(thing["kind"], thing["metadata"]["name"]) for thing in objects}
    there |= (
        {("Secret", name) for name in MADE_BY_THE_USER} if not of_kind(objects, "Secret") else set()
    )
    for owner, template in templates(objects):
        spec = template["spec"]
        wanted = [("ServiceAccount", spec.get("serviceAccountName"))]
        wanted += [("PriorityClass", spec.get("priorityClassName"))]
        claims = {
            claim["metadata"]["name"]
            for thing in of_kind(objects, "StatefulSet")
            if name_of(thing) == owner
            for claim in thing["spec"].get("volumeClaimTemplates", [])
        }
        volumes = {volume["name"] for volume in spec.get("volumes", [])} | claims
        mounted = set()
        for volume in spec.get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            wanted.append(("PersistentVolumeClaim", claim))
        for container in containers(template):
            mounted |= {mount["name"] for mount in container["volumeMounts"]}
            for source in container.get("envFrom", []):
                wanted.append(("ConfigMap", source.get("configMapRef", {}).get("name")))
                if not source.get("secretRef", {}).get("optional"):
                    wanted.append(("Secret", source.get("secretRef", {}).get("name")))
            for variable in container.get("env", []):
                reference = variable.get("valueFrom", {}).get("secretKeyRef", {})
                wanted.append(("Secret", reference.get("name")))
        for kind, name in wanted:
            if name is not None and (kind, name) not in there:
                yield f"{owner}: there is no {kind} {name}"
        if volumes != mounted:
            yield f"{owner}: has the volumes {sorted(volumes)} and mounts {sorted(mounted)}"
    spaces = {thing["metadata"]["name"] for thing in of_kind(objects, "Namespace")}
    for thing in objects:
        cluster_wide = thing["kind"] in ("Namespace", "PriorityClass")
        if not cluster_wide and thing["metadata"].get("namespace") not in spaces:
            yield f"{name_of(thing)}: lies in no namespace of ours"


def asks_for_resources(objects: list[Object]) -> Faults:
    for owner, template in templates(objects):
        for container in containers(template):
            resources = container.get("resources", {})
            requests, limits = resources.get("requests", {}), resources.get("limits", {})
            # No limit of CPU: a worker that is held back renews its leases late.
            if not {"cpu", "memory"} <= requests.keys() or "memory" not in limits:
                yield f"{owner}/{container['name']}: no requests or limits"
            gpu = "nvidia.com/gpu"
            if requests.get(gpu) != limits.get(gpu):
                yield f"{owner}/{container['name']}: asks for GPUs that it may not have"
            is_worker = container is template["spec"]["containers"][0]
            if is_worker and "worker-gpu" in container["image"] and gpu not in limits:
                yield f"{owner}/{container['name']}: no GPU"


def has_the_disk_that_it_may_fill(objects: list[Object]) -> Faults:
    """A node must have room for a pod's folders, and a pod that keeps to them is not evicted."""
    for owner, template in templates(objects):
        [container, *others] = template["spec"]["containers"]
        assert not others, owner
        if not is_ours(container):
            continue
        folders = [
            volume["emptyDir"]
            for volume in template["spec"]["volumes"]
            if volume.get("emptyDir", {"medium": "Memory"}).get("medium") != "Memory"
        ]
        if not all("sizeLimit" in folder for folder in folders):
            yield f"{owner}: a folder may fill the node"
            continue
        filled = sum(parse_quantity(folder["sizeLimit"]) for folder in folders)
        for kind in ("requests", "limits"):
            disk = container["resources"][kind].get("ephemeral-storage", "0")
            if not filled < parse_quantity(disk) <= filled * 2:
                yield f"{owner}: {kind} {disk} of disk and may fill {filled / 2**30} Gi"


def parse_quantity(text: str) -> float:
    """Bytes of a quantity such as 16Gi."""
    found = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti)?", text)
    assert found, text
    return int(found[1]) * 1024.0 ** ["", "Ki", "Mi", "Gi", "Ti"].index(found[2] or "")


def scales_by_its_own_pool(objects: list[Object]) -> Faults:
    deployments = {thing["metadata"]["name"]: thing for thing in of_kind(objects, "Deployment")}
    for thing in of_kind(objects, "ScaledObject"):
        target = deployments.get(thing["spec"]["scaleTargetRef"]["name"])
        if target is None:
            yield f"{name_of(thing)}: scales nothing"
            continue
        if "replicas" in target["spec"]:
            yield f"{name_of(thing)}: the next apply sets the replicas back"
        [trigger] = thing["spec"]["triggers"]
        template = target["spec"]["template"]
        pool = template["metadata"]["labels"]["nightshift/pool"]
        if re.findall(r"'([^']*)'", trigger["metadata"]["query"]) != [pool]:
            yield f"{name_of(thing)}: asks for another pool than {pool}"
        if float(trigger["metadata"]["targetQueryValue"]) != slots(template):
            yield f"{name_of(thing)}: a pod has {slots(template)} slots"
        if trigger["metricType"] != "AverageValue":  # KEDA falls back with this alone
            yield f"{name_of(thing)}: does not share the demand by pod"
        if trigger["metadata"]["activationTargetQueryValue"] != "0":
            yield f"{name_of(thing)}: a single slot's work wakes nobody"
        there = {one["metadata"]["name"] for one in of_kind(objects, "TriggerAuthentication")}
        if trigger["authenticationRef"]["name"] not in there:
            yield f"{name_of(thing)}: no way to sign in"


def slots(template: Object) -> int:
    """Engines of a worker pod: as many as it is told to have, else one a GPU."""
    [container] = template["spec"]["containers"]
    for word in container["args"]:
        if word.startswith("--slots="):
            return int(word.partition("=")[2])
    return int(container["resources"]["limits"].get("nvidia.com/gpu", 1))


CHECKS: list[Any] = [
    fits_its_schema,
    is_restricted,
    is_shut,
    sets_what_is_read,
    runs_commands_that_exist,
    leaves_in_time,
    is_watched,
    is_given_time,
    runs_as_the_images_do,
    is_scraped_with_its_key,
    has_images_of_this_release,
    selects_its_own_pods,
    selects_what_has_its_ports,
    listens_where_it_says,
    leads_to_a_service,
    leads_to_what_is_served,
    lets_through_what_is_used,
    refers_to_what_is_there,
    asks_for_resources,
    has_the_disk_that_it_may_fill,
    scales_by_its_own_pool,
]
