"""``make image-test``: the container image built, run as it is deployed, and looked into, where no engine is at hand.

buildah builds it and runs it, without any service of an engine: its root read-only, as an unprivileged user without
capabilities. Needs root, and Debian's packages buildah and, where IMAGE_BASE is ``mmdebstrap``, mmdebstrap: the base
image is then made from Debian's packages, for machines that reach no registry.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import httpx
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parents[1]
IMAGE, LOCAL_BASE = "localhost/tirgemm", "localhost/tirgemm-base"
BUILD = ("buildah", "bud", "--isolation", "chroot", "--format", "docker", "--layers")
MAX_BYTES = 10**9
USER = 10001
LOCKS = "tmp/tirgemm-locks"
BILL = "usr/share/doc/tirgemm/sbom.cdx.json"
GEMM, OTHER_GEMM = "129x65x77:f16:nn", "63x67x65:f16:nt"
STOP_SECONDS = 20.0
# Debian 12 as its slim image is: without documentation, and merged without usrmerge, which needs Perl.
DEBIAN = """
mmdebstrap --variant=minbase --include=ca-certificates --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr
    --setup-hook='mkdir -p "$1"/etc/apt/preferences.d && cd "$1"/etc/apt/preferences.d &&
        printf "Package: usrmerge\\nPin: release *\\nPin-Priority: -1\\n" > usrmerge'
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*'
    --dpkgopt='path-exclude=/usr/share/locale/*'
    --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt "$1"/etc/apt/preferences.d/usrmerge' bookworm
"""
_SECRET_FILES = re.compile(
    r"(^|/)(signing\.key|\.netrc|\.pypirc|pip\.conf|\.env|id_[a-z0-9]+|\.git|\.aws|\.docker)(/|$)"
)
_SECRETS = re.compile(
    rb"-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}"
    rb"|\btirgemm_(?=[a-z_-]*[A-Z0-9])[\w-]{43}(?![\w-])|AKIA[0-9A-Z]{16}"
)
_SECRET_VARIABLE = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|TIRGEMM_DB")


def main() -> int:
    """Build, check and run the image; each step says what it saw. Raises AssertionError or CalledProcessError."""
    for program in ("buildah", *(["mmdebstrap"] if base_name() == "mmdebstrap" else [])):
        if shutil.which(program) is None:
            print(f"{program} is missing: apt-get install {program}", file=sys.stderr)
            return 2
    build()
    with tempfile.TemporaryDirectory() as folder:
        check_image(Path(folder))
    check_run()
    print("the image is as it should be")
    return 0


def base_name() -> str:
    """What the image is built on: a reference, or ``mmdebstrap``."""
    return os.environ.get("IMAGE_BASE") or "docker.io/library/debian:bookworm-slim"


def told(*command: str, **options: Any) -> str:
    """What a command prints on stdout. Raises CalledProcessError."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options)
    return str(done.stdout).strip()


def build() -> None:
    begun = time.monotonic()
    base, options = base_name(), []
    if base == "mmdebstrap":
        base = LOCAL_BASE
        # Its packages are installed, certificates too: pip may need those of this machine's proxy.
        options = ["--volume", "/etc/ssl/certs:/etc/ssl/certs:ro"]
        if not told("buildah", "images", "--quiet", "--filter", f"reference={LOCAL_BASE}"):
            make_base()
    subprocess.run(
        [*BUILD, *options, "--build-arg", f"BASE={base}", "--tag", IMAGE, str(ROOT)],
        check=True,
        stdout=sys.stderr,
    )
    print(f"built on {base} in {time.monotonic() - begun:.0f} s")


def make_base() -> None:
    """The base image from Debian's packages."""
    with tempfile.TemporaryDirectory() as folder:
        archive = str(Path(folder) / "debian.tar")
        subprocess.run([*shlex.split(DEBIAN), archive], check=True, stdout=sys.stderr)
        container = told("buildah", "from", "scratch")
        told("buildah", "add", "--quiet", container, archive, "/")
        told("buildah", "commit", "--quiet", "--rm", container, LOCAL_BASE)


def described() -> dict[str, Any]:
    """The image's own description in Docker's format."""
    image: dict[str, Any] = json.loads(told("buildah", "inspect", "--type", "image", IMAGE))["Docker"]
    return image


def check_image(folder: Path) -> None:
    """Size, user, health check, bill of materials, and that no layer holds a secret."""
    config = described()["config"]
    assert config["User"] == str(USER), config["User"]
    assert config["Healthcheck"]["Test"], "the image has no health check"
    assert config["Volumes"].keys() == {"/data"}
    secret = [name for name in config["Env"] if _SECRET_VARIABLE.search(name.partition("=")[0])]
    assert not secret, secret
    print(
        f"user {config['User']}, entrypoint {config['Entrypoint']}, volume /data, health check {config['Healthcheck']}"
    )
    told("buildah", "push", "--quiet", "--disable-compression", IMAGE, f"dir:{folder}")
    layers = [folder / layer["digest"].partition(":")[2] for layer in manifest(folder)["layers"]]
    size = sum(layer.stat().st_size for layer in layers)
    assert size < MAX_BYTES, f"the image has {size:,} bytes; the limit is {MAX_BYTES:,}"
    print(f"size {size / 1e6:.0f} MB in {len(layers)} layers, of at most {MAX_BYTES / 1e6:.0f} MB")
    files = sum(searched(layer) for layer in layers)
    print(f"no secret in {files:,} files of all layers, nor in the variables")
    check_bill()
    check_lock_folder()


def manifest(folder: Path) -> dict[str, Any]:
    """The manifest of an image in a folder."""
    document: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return document


def searched(layer: Path) -> int:
    """How many files a layer has. Raises AssertionError where one of them is, or holds, a secret."""
    count = 0
    with tarfile.open(layer) as archive:
        for member in archive:
            assert not _SECRET_FILES.search(member.name), member.name
            stream = archive.extractfile(member) if member.isfile() else None
            if stream is not None:
                count += 1
                content = stream.read()
                # A library may hold keys that it tests itself with.
                assert b"\0" in content or not _SECRETS.search(content), member.name
    return count


def check_bill() -> None:
    """The bill of materials is valid, and names every package that is in the image."""
    with mounted() as root:
        text = (root / BILL).read_text()
        fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
        assert fault is None, fault
        components = json.loads(text)["components"]
        named = {component["purl"] for component in components}
        debian_named = {c["name"] for c in components if c["purl"].startswith("pkg:deb/")}
        (packages,) = (root / "opt/tirgemm/lib").glob("python3*/site-packages")
        python = {
            f"pkg:pypi/{p.name.lower().replace('_', '-')}@{p.version}" for p in distributions(path=[str(packages)])
        }
        debian = told("chroot", str(root), "dpkg-query", "--show", "--showformat", "${Package}\\n").splitlines()
        unnamed = {purl for purl in python if purl not in named and "/tirgemm@" not in purl}
        unnamed |= set(debian) - debian_named
        assert not unnamed, unnamed
    print(f"bill of materials: valid CycloneDX 1.6, {len(python)} Python and {len(debian)} Debian packages")


def check_lock_folder() -> None:
    """The folder that a fresh volume of device locks takes its mode from may be written by everybody."""
    with mounted() as root:
        mode = (root / LOCKS).stat().st_mode & 0o7777
    assert mode == 0o1777, oct(mode)
    print(f"/{LOCKS} may be written by everybody")


@contextmanager
def mounted() -> Iterator[Path]:
    """The image's files in a folder."""
    container = told("buildah", "from", IMAGE)
    try:
        yield Path(told("buildah", "mount", container))
    finally:
        told("buildah", "rm", container)


@contextmanager
def container_on(data: Path) -> Iterator[list[str]]:
    """The beginning of a command line that runs a program in the image: its root read-only, as its user, without any
    capability, the folder at /data."""
    container = told("buildah", "from", IMAGE)
    lowered = f"setpriv --reuid {USER} --regid {USER} --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all"
    # As Docker mounts --read-only and --tmpfs /tmp.
    mounts = "mount -o remount,bind,ro / && mount -o remount,noexec,nosuid,nodev /tmp"
    try:
        yield [
            *("buildah", "run", "--isolation", "chroot", "--user", "0", "--cap-add", "CAP_SYS_ADMIN"),
            *("--volume", f"{data}:/data", "--mount", "type=tmpfs,destination=/tmp,tmpfs-mode=1777", container, "--"),
            *("sh", "-c", f'{mounts} && exec {lowered} "$@"', "sh"),
        ]
    finally:
        told("buildah", "rm", container)


def check_run() -> None:
    """The service answers with a tuned kernel and stops in good order; ``tune`` is one job; the root is read-only."""
    config = described()["config"]
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        os.chown(data, USER, USER)
        with container_on(data) as run:
            look = "id; touch /opt/x /usr/x /etc/x 2>&1; grep Cap /proc/self/status; grep ' /tmp ' /proc/mounts; exit 0"
            confined = told(*run, "sh", "-c", look)
            assert "noexec" in confined, confined
            assert f"uid={USER}" in confined, confined
            assert confined.count("Read-only file system") == 3, confined
            assert not re.search(r"Cap\w+:\s+0*[1-9a-f]", confined), confined
            print("uid 10001, no capabilities, read-only root: /opt, /usr and /etc cannot be written")
            key = json.loads(
                told(*run, *config["Entrypoint"], "keys", "create", "image-test", "--scope", "admin", "--json")
            )
            serve(run, config["Entrypoint"], data, key["key"])
            once = json.loads(
                told(*run, *config["Entrypoint"], "tune", OTHER_GEMM, "--device", "cpu", "--effort", "quick", "--json")
            )
            assert once["role"] == "tuned", once
            assert once["certificate"]["passed"], once
            print(f"tune {OTHER_GEMM}: exit 0, {once['config']}, certified")


def serve(run: list[str], entrypoint: list[str], data: Path, key: str) -> None:
    """Run the service, ask it for a kernel, and stop it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    service = subprocess.Popen(
        [*run, *entrypoint, "serve", "--host", "0.0.0.0", "--port", str(port)], stdout=sys.stderr
    )
    file = data / "server.json"
    try:
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=150.0) as client:
            wait_for(file)
            ready = client.get("/readyz").raise_for_status().json()
            assert httpx.get(f"{client.base_url}/healthz").status_code == 200
            assert httpx.get(f"{client.base_url}/v1/meta").status_code == 401
            problem = {"gemm": GEMM, "device": "cpu", "effort": "quick"}
            answer = client.post("/v1/kernels", json=problem, headers={"Prefer": "wait=120"})
            kernel = answer.raise_for_status().json()
            assert (answer.status_code, kernel["role"]) == (200, "tuned"), kernel
            artifact = client.get(f"/v1/artifacts/{kernel['artifact']['sha256']}").raise_for_status().content
            assert "tirgemm_jobs" in client.get("/metrics").raise_for_status().text
        print(f"the service is {ready['status']}; POST {GEMM}: {kernel['role']}, an artifact of {len(artifact)} bytes")
        begun = time.monotonic()
        os.kill(json.loads(file.read_text())["pid"], signal.SIGTERM)
        service.wait(timeout=STOP_SECONDS)
        print(f"SIGTERM: ended after {time.monotonic() - begun:.1f} s, exit code {service.returncode}")
        assert not file.exists(), "the service did not end in good order"
    finally:
        if service.poll() is None:
            service.kill()


def wait_for(file: Path, seconds: float = 90.0) -> None:
    """Wait until there is the file that says where the service listens."""
    deadline = time.monotonic() + seconds
    while not file.exists():
        assert time.monotonic() < deadline, f"the service does not answer after {seconds:.0f} s"
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
