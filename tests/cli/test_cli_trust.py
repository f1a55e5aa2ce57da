"""Trust at the command line: what is tuned, downloaded and saved runs, and the lines that errors say to paste work."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_samples import SIGNER, packed, packed_set
from tests.helpers.command_line import Run, own_folders
from tests.helpers.fake_service import EVENTS, FakeService
from tests.helpers.loadable_bench import LoadableBench
from tests.helpers.loopback_service import listening, served
from tirgemm import Gemm
from tirgemm._client import http
from tirgemm.artifact import Signer, Trust, private_file, read
from tirgemm.artifact.known_servers import KnownServer, KnownServers
from tirgemm.artifact.signing_keys import SigningKeys
from tirgemm.config import Config

SHAPE = "61x67x71:f16:nt"
URL = "http://127.0.0.1:8000"
OTHER = Signer.generate().public


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of the test's own, builds that take no time, and no terminal."""
    own_folders(tmp_path, monkeypatch)
    monkeypatch.setattr("tirgemm.tuning.tuned_kernel.Workbench", LoadableBench)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    return tmp_path


def test_who_has_no_home_is_told_what_to_set(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    code, _, err = run("trust", "list")
    assert (code, "home directory; set XDG_CONFIG_HOME or HOME" in err) == (2, True), err


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeService:
    """The service that every command reaches, whatever the address."""
    service = FakeService()
    real = http.ServiceConnection

    def session(url: str, **options: Any) -> http.ServiceConnection:
        return real(url, **options | {"transport": service, "patience": 0.05})

    monkeypatch.setattr("tirgemm.client.ServiceConnection", session)
    return service


def pasted(said: str) -> list[str]:
    """The arguments of the `tirgemm` line at the end of an error."""
    match = re.search(r"tirgemm (trust add .*)$", said.strip())
    assert match is not None, said
    return shlex.split(match[1])


def test_what_is_tuned_is_called_and_verified_on_the_same_machine(run: Run) -> None:
    code, out, _ = run("tune", SHAPE, "--device", "cpu", "--trials", 3, "-o", "k")
    assert (code, "trust add" in out) == (0, False)
    for command in ("call", "verify"):
        assert run(command, "k")[0] == 0
    assert run("export", "k", "k.so")[0] == 0
    code, out, _ = run("tune", SHAPE, "--device", "cpu", "--trials", 3, "-o", "again")
    assert (code, "from the database: 3 trials" in out) == (0, True)
    assert Path("again").read_bytes() == Path("k").read_bytes()
    code, out, _ = run("tune", SHAPE, "--device", "cpu", "--trials", 3, "--retune", "--json")
    document = json.loads(out)
    assert (code, document["stored"], document["trials"]) == (0, False, 6)


def test_what_is_tuned_in_another_folder_of_the_users_is_called_when_that_is_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # a line to paste stays whole in a narrow terminal too
    code, out, _ = run("tune", SHAPE, "--device", "cpu", "--trials", 2, "--data", "other", "-o", "k")
    assert code == 0
    code, _, err = run("call", "k")
    assert (code, pasted(err)) == (1, pasted(out))
    for command in (("call", "k"), ("verify", "k"), ("export", "k", "k.so")):
        assert run(*command, "--data", "other")[0] == 0
    assert run("call", "k")[0] == 1, "naming it once is not for good"
    assert run(*pasted(err))[0] == 0
    assert run("call", "k")[0] == 0


def test_tune_trusts_another_folders_key_when_told_and_never_writes_the_users_own(run: Run, home: Path) -> None:
    options = (SHAPE, "--device", "cpu", "--trials", 2, "--trust")
    assert run("tune", *options)[0] == 0
    assert not (home / "config").exists()
    assert run("tune", *options, "--data", "other", "-o", "k")[0] == 0
    assert run("verify", "k")[0] == 0


def test_own_kernels_stay_valid_after_a_rotation_until_their_key_or_they_are_revoked(run: Run, home: Path) -> None:
    folder = home / "data" / "tirgemm"
    keys = SigningKeys(folder)
    Path("k").write_bytes(packed(Gemm.parse(SHAPE), signer=keys.current))
    Path("again").write_bytes(packed(Gemm.parse(SHAPE).with_(m=3), signer=keys.current))
    old = keys.current.public
    assert run("signing", "rotate")[0] == 0
    new = SigningKeys(folder).current.public
    assert [run("call", name)[0] for name in ("k", "again")] == [0, 0]
    rows = json.loads(run("trust", "list", "--json")[1])["keys"]
    assert [(row["kind"], row["key"], Path(row["file"]).name) for row in rows] == [
        ("own", new, "signing.key"),
        ("own", old, "revocations.json"),
    ]
    assert run("signing", "revoke", hashlib.sha256(Path("again").read_bytes()).hexdigest(), "--reason", "slow")[0] == 0
    code, _, err = run("call", "again")
    assert (code, "was revoked: slow" in err, run("call", "k")[0]) == (1, True, 0)
    assert run("signing", "revoke", old, "--reason", "leaked")[0] == 0
    assert Trust.default().keys == {new}
    for command in (("call", "k"), ("trust", "add", old), ("trust", "add", URL, old)):
        code, _, err = run(*command)
        assert (code, f"{old} was revoked: leaked" in err, "trust add" in err) == (1, True, False)
    private_file.append(home / "config" / "tirgemm" / "trusted_keys", old)
    code, _, err = run("call", "k")
    assert (code, f"{old} was revoked: leaked" in err) == (1, True)
    rows = json.loads(run("trust", "list", "--json")[1])["keys"]
    assert [(row["kind"], row["key"], row["revoked"]) for row in rows] == [("own", new, False), ("key", old, True)]
    assert f"  {old}  REVOKED" in run("trust", "list")[1].splitlines()
    lists = home / "config" / "tirgemm" / "revocations"
    lists.mkdir(parents=True)
    (lists / f"{'0' * 32}.json").write_text("{")
    (lists / f"{'0' * 32}.json").chmod(0o600)
    code, out, err = run("trust", "list", "--json")
    assert (code, [row["revoked"] for row in json.loads(out)["keys"]], err.count("is no JSON")) == (0, [None, True], 1)


def test_what_another_folder_of_the_users_has_revoked_is_refused_where_that_is_named(run: Run) -> None:
    tune = ("tune", SHAPE, "--device", "cpu", "--effort", "none", "--data", "other", "-o")
    assert run(*tune, "k")[0] == 0
    artifact = hashlib.sha256(Path("k").read_bytes()).hexdigest()
    assert run("signing", "revoke", artifact, "--reason", "slow", "--data", "other")[0] == 0
    for command in (("call", "k"), ("verify", "k"), ("export", "k", "k.so"), ("show", "k"), ("compare", "k", "k")):
        code, _, err = run(*command, "--data", "other")
        assert (code, f"{artifact} was revoked: slow" in err) == (1, True)
    # Made again within the same second it is the same file, which is refused.
    code, _, err = run(*tune, "again")
    assert (code, "was revoked: slow" in err) in ((0, False), (1, True))
    assert [path for path in Path().glob("again") if path.read_bytes() == Path("k").read_bytes()] == []


def test_a_revoked_kernel_is_refused_in_every_artifact_and_is_not_made_again(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune = ("tune", SHAPE, "--device", "cpu", "--json", "-o")
    us: dict[Config, float] = {}

    def bench(*args: Any, **options: Any) -> LoadableBench:
        """The default is timed first, and is the slowest."""
        made = LoadableBench(*args, **options)
        made.us = lambda config: us.setdefault(config, 100 / 2 ** len(us))
        return made

    monkeypatch.setattr("tirgemm.tuning.tuned_kernel.Workbench", bench)
    tuned = json.loads(run(*tune, "k", "--trials", 6)[1])["kernel_sha256"]
    keys = SigningKeys(home / "data" / "tirgemm")
    Path("set").write_bytes(packed_set(Gemm.parse("1..7x9x5:f32:nn"), (2, 7), signer=keys.current))
    for revoked, file in ((tuned, "k"), (read(Path("set")).manifest.members[0].kernel_sha256, "set")):
        assert run("call", file)[0] == 0
        assert run("signing", "revoke", revoked, "--reason", "wrong")[0] == 0
        code, _, err = run("call", file)
        assert (code, f"the kernel {revoked} was revoked: wrong" in err) == (1, True)
    code, out, _ = run(*tune, "again", "--trials", 6)
    assert (code, json.loads(out)["kernel_sha256"] != tuned) == (0, True)


def test_get_from_the_users_own_service_then_call_and_verify(run: Run, home: Path) -> None:
    with served(home / "elsewhere") as signer:
        fake = FakeService(signer=signer)
        fake.answer = fake.ready
        with listening(fake) as url:
            code, out, _ = run("get", fake.gemm, "--url", url, "-o", "k")
            assert (code, "k  tuned" in out) == (0, True)
    for command in ("call", "verify"):
        assert run(command, "k")[0] == 0, "the service need not run any more"


def test_the_line_that_get_says_to_paste_makes_get_work(run: Run, fake: FakeService) -> None:
    code, _, err = run("get", fake.gemm)
    assert (code, fake.sent("POST", "/v1/kernels")) == (1, [])
    assert pasted(err) == ["trust", "add", URL, SIGNER.public]
    code, out, _ = run(*pasted(err))
    assert (code, out) == (0, f"{URL} is accepted with {SIGNER.public}\n")
    assert run("get", fake.gemm, "-o", "k")[0] == 0
    assert run("verify", "k")[0] == 0


def test_what_is_no_key_is_refused_before_the_service_is_asked(run: Run, fake: FakeService) -> None:
    code, _, err = run("trust", "add", URL, "ed25519:abc")
    assert (code, "not a public key of the form ed25519:<base64>" in err) == (2, True)
    assert fake.requests == []


def test_the_line_for_a_changed_key_replaces_it(run: Run, fake: FakeService) -> None:
    KnownServers.default().accept(URL, [OTHER])
    code, _, err = run("get", fake.gemm)
    assert (code, "HAS CHANGED" in err, OTHER in err) == (1, True, True)
    assert run("trust", "add", URL, SIGNER.public)[0] == 1
    assert run("get", fake.gemm, "--trust", SIGNER.public)[0] == 1
    assert run(*pasted(err))[0] == 0
    assert KnownServers.default().keys(URL) == {SIGNER.public}
    assert run("get", fake.gemm, "-o", "k")[0] == 0


def test_the_line_for_a_strangers_file_makes_it_run(run: Run, home: Path) -> None:
    stranger = Signer.generate()
    (home / "k").write_bytes(packed(Gemm.parse(SHAPE), signer=stranger))
    code, _, err = run("verify", "k")
    assert (code, pasted(err)) == (1, ["trust", "add", stranger.public])
    assert run(*pasted(err), "--comment", "a colleague")[0] == 0
    assert run("call", "k")[0] == 0
    assert Trust.default().comments() == {stranger.public: "a colleague"}


def test_get_with_a_key_remembers_the_services_own_and_trusts_the_others_too(run: Run, fake: FakeService) -> None:
    code, _, err = run("get", fake.gemm, "--trust", OTHER)
    assert (code, "not with" in err, fake.sent("POST", "/v1/kernels")) == (1, True, [])
    assert Trust.default().keys == frozenset(), "a key that is not the service's is not written"
    assert run("get", fake.gemm, "--trust", OTHER, "--trust", SIGNER.public)[0] == 0
    assert KnownServers.default().keys(URL) == {SIGNER.public}
    assert Trust.default().comments() == {OTHER: URL}
    fake.streams, fake.status = [list(EVENTS)], "running"
    assert run("get", fake.gemm)[0] == 0


def test_add_asks_on_a_terminal_and_compares_elsewhere(
    run: Run, fake: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, err = run("trust", "add", URL)
    assert (code, pasted(err)) == (1, ["trust", "add", URL, SIGNER.public])
    code, _, err = run("trust", "add", URL, OTHER)
    assert (code, f"signs with {SIGNER.public}, not with {OTHER}" in err) == (1, True)
    assert not KnownServers.default().entries()
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for answer, wanted in (("n\n", 1), ("y\n", 0)):
        asked: list[str] = []

        def confirm(text: str, answer: str = answer, asked: list[str] = asked, **_options: Any) -> bool:
            asked.append(text)
            return answer == "y\n"

        monkeypatch.setattr("typer.confirm", confirm)
        code, _, err = run("trust", "add", URL)
        assert (code, asked, SIGNER.public in err) == (wanted, ["Accept it from now on?"], True)
        assert KnownServers.default().keys(URL) == (frozenset() if wanted else {SIGNER.public})
    KnownServers.default().forget(URL)
    code, _, err = run("trust", "add", URL, "--json")
    assert code == 1, "JSON is for programs, which are not asked"
    assert fake.sent("POST", "/v1/kernels") == []


def test_list_shows_every_key_and_its_file_and_remove_takes_it_out(run: Run, home: Path) -> None:
    assert "no key is accepted yet" in run("trust", "list")[1]
    own = Signer.load_or_create(home / "data" / "tirgemm" / "signing.key").public
    Trust.default().add(OTHER, "a colleague")
    KnownServers.default().accept(URL, [SIGNER.public], "the lab")
    code, out, _ = run("trust", "list")
    assert code == 0
    for line in (f"  {own}  your own", f"  {OTHER}  a colleague", f"  {URL}  {SIGNER.public}  the lab"):
        assert line in out.splitlines()
    for file in ("data/tirgemm/signing.key", "config/tirgemm/trusted_keys", "config/tirgemm/known_servers"):
        assert str(home / file) in out.splitlines()
    rows = json.loads(run("trust", "list", "--json")[1])["keys"]
    assert [(row["kind"], row["key"], row["url"]) for row in rows] == [
        ("own", own, ""),
        ("key", OTHER, ""),
        ("service", SIGNER.public, URL),
    ]
    assert run("trust", "remove", OTHER)[0] == 0
    assert run("trust", "remove", URL + "/")[0] == 0
    assert Trust.default().keys == {own}
    for what in (OTHER, URL):
        code, _, err = run("trust", "remove", what)
        assert (code, "is not among what you accept" in err) == (2, True)
    code, _, err = run("trust", "remove", own)
    assert (code, f"is your own key, of {home / 'data' / 'tirgemm'}; `tirgemm signing revoke`" in err) == (2, True)


def test_what_is_not_known_is_not_removed_and_leaves_no_folder(run: Run, home: Path) -> None:
    assert run("trust", "remove", URL)[0] == 2
    assert not (home / "config").exists()


def test_remove_takes_a_servers_key_out_by_the_key_too(run: Run) -> None:
    KnownServers.default().accept(URL, [OTHER])
    KnownServers.default().accept("http://b.example", [SIGNER.public])
    assert run("trust", "remove", OTHER)[0] == 0
    assert KnownServers.default().entries() == (KnownServer("http://b.example", SIGNER.public),)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("add", "ed25519:AAAA"), "not a public key"),
        (("add", "gpu.example"), "is not a URL"),
        (("add", OTHER, SIGNER.public), "is a key by itself"),
        (("add", OTHER, "--replace"), "is a key by itself"),
        (("add", URL, "--comment", "x"), "--comment"),
        (("remove", "nothing"), "is not a URL"),
        (("remove", "ed25519:AAAA"), "not a public key"),
    ],
)
def test_what_is_neither_key_nor_service_is_refused(run: Run, arguments: tuple[str, ...], says: str) -> None:
    code, _, err = run("trust", *arguments)
    assert (code, says in err) == (2, True)
