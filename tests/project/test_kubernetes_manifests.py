"""The manifests for Kubernetes hold what Kubernetes's API has, and what this project promises of a deployment."""

from __future__ import annotations

import copy
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from lightkube.core.resource_registry import resource_registry

from tirgemm.service.jobs.process import GRACE_SECONDS
from tirgemm.service.settings import HANG_SECONDS

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT / "tests" / "data" / "kubernetes_1.30.schema.json.gz"
FOLDER = ROOT / "deploy" / "kubernetes"
DOCUMENTS: list[dict[str, Any]] = [
    document
    for path in sorted(FOLDER.glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for document in yaml.safe_load_all(path.read_text())
]
PODS = [document for document in DOCUMENTS if document["kind"] == "Deployment"]


def fault(document: dict[str, Any]) -> str:
    """What is wrong with a manifest by the types that lightkube made of Kubernetes's OpenAPI document; else empty."""
    kind = resource_registry.load(document["apiVersion"], document["kind"])
    try:
        typed = msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        return str(error)
    # What the API does not know is dropped.
    known = msgspec.to_builtins(typed)
    return "" if known == document else "it has what the API does not know"


def named(document: dict[str, Any]) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def pod(document: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = document["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_a_manifest_is_what_the_api_takes(document: dict[str, Any]) -> None:
    assert not fault(document)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec["containers"][0].update(redinessProbe={}), "does not know"),
        (lambda spec: spec["containers"][0].pop("name"), "missing required field `name`"),
        (lambda spec: spec.update(terminationGracePeriodSeconds="30"), "Expected `int | null`, got `str`"),
        (
            lambda spec: spec["containers"][0]["securityContext"].update(readOnlyRootFilesystem="yes"),
            "Expected `bool | null`, got `str`",
        ),
    ],
)
def test_a_wrong_manifest_is_told(change: Any, words: str) -> None:
    wrong = copy.deepcopy(PODS[0])
    change(pod(wrong))
    assert words in fault(wrong)


@pytest.fixture
def refusals(tmp_path: Path) -> Callable[[list[dict[str, Any]]], str]:
    """What a validator of JSON schemas says of manifests by Kubernetes's own; empty where it takes them."""
    schema = tmp_path / "schema.json"
    schema.write_bytes(gzip.decompress(SCHEMA.read_bytes()))

    def call(documents: list[dict[str, Any]]) -> str:
        files = [tmp_path / f"{number}.json" for number in range(len(documents))]
        for file, document in zip(files, documents, strict=True):
            file.write_text(json.dumps(document))
        program = Path(sys.executable).with_name("check-jsonschema")
        done = subprocess.run(
            [program, "--schemafile", schema, *files], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout if done.returncode else ""

    return call


def test_kubernetes_own_schema_takes_every_manifest(refusals: Callable[[list[dict[str, Any]]], str]) -> None:
    assert not refusals(DOCUMENTS)


def test_kubernetes_own_schema_tells_a_wrong_manifest(refusals: Callable[[list[dict[str, Any]]], str]) -> None:
    changes: list[tuple[Callable[[dict[str, Any]], object], str]] = [
        (lambda each: pod(each)["containers"][0].update(redinessProbe={}), "'redinessProbe' was unexpected"),
        (lambda each: pod(each)["containers"][0].pop("name"), "'name' is a required property"),
        (lambda each: each["spec"].pop("selector"), "'selector' is a required property"),
        (lambda each: pod(each).update(terminationGracePeriodSeconds="30"), "'30' is not of type 'integer'"),
        (lambda each: each.update(apiVersion="apps/v1beta1"), "'apps/v1beta1' is not one of ['apps/v1']"),
        (lambda each: each.update(kind="Deployments"), "'Deployments' is not one of"),
        (lambda each: each.pop("kind"), "'kind' is a required property"),
    ]
    wrong = [copy.deepcopy(PODS[0]) for _ in changes]
    for (change, _), document in zip(changes, wrong, strict=True):
        change(document)
    told = refusals(wrong)
    for number, (_, words) in enumerate(changes):
        lines = [line for line in told.splitlines() if f"/{number}.json::" in line]
        assert any(words in line for line in lines), (words, lines)


def test_kustomization_names_every_manifest() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert {*listed["resources"], "kustomization.yaml"} == {path.name for path in FOLDER.iterdir()}
    namespace = next(document for document in DOCUMENTS if document["kind"] == "Namespace")
    assert listed["namespace"] == namespace["metadata"]["name"]


@pytest.mark.parametrize("document", PODS, ids=named)
def test_a_pod_has_no_rights_and_a_read_only_root(document: dict[str, Any]) -> None:
    image = (ROOT / "Dockerfile").read_text()
    spec = pod(document)
    (user,) = re.findall(r"^USER (\d+)$", image, re.MULTILINE)
    assert spec["securityContext"]["runAsUser"] == spec["securityContext"]["fsGroup"] == int(user)
    assert spec["securityContext"]["runAsNonRoot"]
    assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert not spec["automountServiceAccountToken"]
    assert spec["enableServiceLinks"] is False, "of the Service `tirgemm` Kubernetes would make TIRGEMM_PORT"
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/tmp"}
    assert "password" not in yaml.safe_dump(document).lower()


def test_the_service_is_probed_and_drained() -> None:
    service = next(document for document in PODS if document["metadata"]["name"] == "tirgemm")
    (container,) = pod(service)["containers"]
    assert container["livenessProbe"]["httpGet"] == container["startupProbe"]["httpGet"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert 0 < container["lifecycle"]["preStop"]["sleep"]["seconds"] < pod(service)["terminationGracePeriodSeconds"]
    (port,) = container["ports"]
    assert container["args"][container["args"].index("--port") + 1] == str(port["containerPort"])


def test_a_worker_has_a_gpu_and_the_time_to_drain() -> None:
    worker = next(document for document in PODS if document["metadata"]["name"] == "tirgemm-worker")
    (container,) = pod(worker)["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert pod(worker)["terminationGracePeriodSeconds"] > GRACE_SECONDS


def test_a_worker_that_touches_its_file_no_more_is_ended(tmp_path: Path) -> None:
    worker = next(document for document in PODS if document["metadata"]["name"] == "tirgemm-worker")
    (container,) = pod(worker)["containers"]
    probe = container["livenessProbe"]["exec"]["command"]
    assert container["startupProbe"]["exec"]["command"] == probe
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert str(variables["TIRGEMM_ALIVE_FILE"]).startswith("/tmp/"), "all else is read-only, or shared"
    file, environment = tmp_path / "alive", {**os.environ, "TIRGEMM_ALIVE_FILE": str(tmp_path / "alive")}

    def ends() -> int:
        return subprocess.run(probe, env=environment, stderr=subprocess.DEVNULL, check=False).returncode

    assert ends() != 0, "it never was alive"
    file.touch()
    assert ends() == 0
    silent = time.time() - HANG_SECONDS - 60  # a worker that can ends itself after HANG_SECONDS
    os.utime(file, (silent, silent))
    assert ends() != 0


def test_a_service_selects_pods_and_a_port_of_theirs() -> None:
    (service,) = (document for document in DOCUMENTS if document["kind"] == "Service")
    chosen = [
        document
        for document in PODS
        if service["spec"]["selector"].items() <= document["spec"]["template"]["metadata"]["labels"].items()
    ]
    assert [document["metadata"]["name"] for document in chosen] == ["tirgemm"]
    (container,) = pod(chosen[0])["containers"]
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] in [each["name"] for each in container["ports"]]
    (hosts,) = (variable["value"] for variable in container["env"] if variable["name"] == "TIRGEMM_HOSTS")
    assert service["metadata"]["name"] in hosts.split(",")
