"""The container files pass their linters, and name what the image really needs."""

from __future__ import annotations

import contextlib
import io
import json
import re
import secrets
import shlex
import socket
import subprocess
import sys
import tarfile
import threading
from http.server import HTTPServer, SimpleHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.helpers.scripts import script
from tests.newcomer.pages import blocks
from tirgemm.service.jobs.process import GRACE_SECONDS
from tirgemm.tuning_db.access.api_keys import SECRET_PREFIX

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_dockerfile_passes_hadolint() -> None:
    done = run(str(BIN / "hadolint"), str(ROOT / "Dockerfile"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_hadolint_would_find_a_bad_dockerfile(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian\nRUN cd /tmp && sudo apt-get install gcc\n")
    assert run(str(BIN / "hadolint"), str(bad)).returncode != 0


@pytest.mark.parametrize("folder", ["usr/lib/gcc/x86_64-linux-gnu/12", "usr/libexec/gcc/x86_64-linux-gnu/14"])
def test_what_only_compiles_is_removed_where_debian_12_and_13_have_it(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (pattern,) = re.findall(r"rm (.*/cc1 .*/lto1) ", (ROOT / "Dockerfile").read_text())
    for program in ("cc1", "lto1", "collect2"):
        (tmp_path / folder / program).touch()
    subprocess.run(["bash", "-ec", f"rm {pattern.replace('/usr/', 'usr/')}"], cwd=tmp_path, check=True)
    assert [left.name for left in (tmp_path / folder).iterdir()] == ["collect2"]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.gpu.yaml"])
def test_compose_file_is_valid(name: str) -> None:
    done = run(str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(ROOT / name))
    assert done.returncode == 0, done.stdout + done.stderr


def services(name: str) -> dict[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / name).read_text())["services"]
    return known


@pytest.mark.parametrize("name", ["service", "worker", "prometheus", "grafana"])
def test_a_container_of_compose_has_no_rights(name: str) -> None:
    container = services("compose.yaml")[name]
    assert container["cap_drop"] == ["ALL"]
    assert container["security_opt"] == ["no-new-privileges:true"]
    assert container.get("read_only") or name == "grafana"
    assert all(port.startswith("127.0.0.1:") for port in container.get("ports", ()))


def test_compose_puts_the_password_of_postgresql_into_no_url() -> None:
    for name in ("service", "worker"):
        environment = services("compose.yaml")[name]["environment"]
        assert environment["TIRGEMM_DB"] == "postgresql+psycopg://tirgemm@database/tirgemm"
        assert environment["PGPASSWORD"].startswith("${POSTGRES_PASSWORD:")


def test_compose_gives_a_container_of_ours_the_time_to_drain() -> None:
    for name in ("service", "worker"):
        assert float(services("compose.yaml")[name]["stop_grace_period"].removesuffix("s")) > GRACE_SECONDS


def test_the_worker_needs_a_gpu_only_with_the_file_for_gpus() -> None:
    assert "deploy" not in services("compose.yaml")["worker"]
    (device,) = services("compose.gpu.yaml")["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert services("compose.gpu.yaml").keys() <= services("compose.yaml").keys()


@pytest.mark.parametrize("stage", ["COPY tirgemm", "COPY tuning_db", "COPY service", "USER 10001", "ARG BASE"])
def test_dockerfile_has(stage: str) -> None:
    assert stage in (ROOT / "Dockerfile").read_text()


def test_the_health_check_asks_the_service_itself_where_there_is_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
    (check,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", joined, re.MULTILINE)
    python, *arguments = json.loads(check)
    assert python == "python3"
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        answered = threading.Thread(target=server.handle_request)
        answered.start()
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        address = f"127.0.0.1:{server.server_port}"
        done = run(sys.executable, *(each.replace("127.0.0.1:8000/healthz", address) for each in arguments))
        with contextlib.suppress(OSError):  # where the check has asked nobody
            socket.create_connection(("127.0.0.1", server.server_port)).close()
        answered.join()
    assert done.returncode == 0, done.stderr


def page_words() -> list[list[str]]:
    """The commands of the page on containers, as words."""
    page = ROOT / "docs" / "containers.md"
    return [shlex.split(line) for block in blocks(page, ROOT) if block.is_run for line in block.commands()]


def test_the_page_s_commands_name_files_and_objects_that_exist() -> None:
    options = {"--file", "--filename", "--kustomize"}
    paths = [after for words in page_words() for word, after in pairwise(words) if word in options]
    assert len(paths) >= 4
    assert all((ROOT / path).exists() for path in paths), paths
    manifests = [
        document
        for path in (ROOT / "deploy" / "kubernetes").glob("*.yaml")
        for document in yaml.safe_load_all(path.read_text())
    ]
    deployed = {document["metadata"]["name"] for document in manifests if document["kind"] == "Deployment"}
    (scaled,) = (words[words.index("deployment") + 1] for words in page_words() if "scale" in words)
    assert scaled in deployed
    (secret,) = (words for words in page_words() if "secret" in words)
    variables = [
        variable["valueFrom"]["secretKeyRef"]
        for document in manifests
        if document["kind"] == "Deployment"
        for variable in document["spec"]["template"]["spec"]["containers"][0]["env"]
        if "valueFrom" in variable
    ]
    key = secret[secret.index("--from-literal") + 1].partition("=")[0]
    assert variables == [{"name": secret[secret.index("generic") + 1], "key": key}] * len(deployed)
    namespaces = [after for words in page_words() for word, after in pairwise(words) if word == "--namespace"]
    named = [document["metadata"]["name"] for document in manifests if document["kind"] == "Namespace"]
    assert set(namespaces) == set(named)


def test_every_target_of_make_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "docs" / "containers.md").read_text()))
    assert named >= {"image-test", "sbom", "up"}
    for target in named:
        done = run("make", "--dry-run", "--directory", str(ROOT), target)
        assert done.returncode == 0, done.stderr


PEM = b"-----BEGIN PRIVATE KEY-----\n" + b"MC4CAQAwBQYDK2VwBCIEIA" * 3 + b"\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("name", "content", "is_secret"),
    [
        ("opt/code.py", b"print('tirgemm_key_requests_per_second_of_a_service_of_ours')", False),
        ("usr/lib/library.so", b"\0" + PEM, False),
        ("data/signing.key", b"", True),
        ("home/.netrc", b"", True),
        ("etc/any", PEM, True),
        pytest.param("etc/any", f"key: {SECRET_PREFIX}{secrets.token_urlsafe(32)}".encode(), True, id="key"),
    ],
)
def test_a_secret_in_a_layer_is_told(name: str, content: bytes, is_secret: bool, tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    searched = script("scripts/image_test.py").searched
    if is_secret:
        with pytest.raises(AssertionError, match=name):
            searched(layer)
    else:
        assert searched(layer) == 1


STATUS = """\
Package: gcc
Status: install ok installed
Architecture: amd64
Version: 4:12.2.0-3
Description: GNU C compiler
 with: more

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def test_the_bill_of_materials_names_packages_of_debian_and_python(tmp_path: Path) -> None:
    for name, version, licence in (("tirgemm", "0.1.0", "Apache-2.0"), ("Some_Thing", "1.2", "Custom licence")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\nLicense: {licence}\n")
    text = JsonV1Dot6(script("scripts/image_sbom.py").bill(tmp_path, STATUS)).output_as_string()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    assert document["metadata"]["component"]["purl"] == "pkg:pypi/tirgemm@0.1.0"
    assert {component["purl"]: component.get("licenses") for component in document["components"]} == {
        "pkg:deb/debian/gcc@4:12.2.0-3?arch=amd64": None,
        "pkg:pypi/some-thing@1.2": [{"license": {"name": "Custom licence"}}],
    }
