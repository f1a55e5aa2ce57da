"""``db``: export, import, records that are collected, and ranking models trained on them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.cli.main.cli_artifacts import SHAPE
from tests.contract.storage.databases import candidate, kernel, read_only
from tests.helpers.command_line import Run
from tirgemm.detect import device


def test_the_database_is_exported_imported_merged_and_collected(run: Run, home: Path) -> None:
    code, _, err = run("db", "info")
    assert (code, "holds no tuning database" in err) == (2, True)
    assert not (home / "data").exists(), "looking did not make one"
    (home / "one").mkdir()
    from tirgemm.tuning_db import Database, SqlStore

    with Database.embedded(home / "one") as database:
        store = SqlStore(database)
        store.put_device(device("cpu"))
        store.put_blob(b"nobody needs this")
    code, out, _ = run("db", "info", "--data", "one", "--json")
    assert (code, json.loads(out)["devices"]) == (0, [device("cpu").key])
    assert "lost attempts: 0" in run("db", "info", "--data", "one")[1]
    assert run("db", "check", "--data", "one")[0] == 0
    assert "1 devices" in run("db", "export", "records.jsonl.gz", "--data", "one")[1]
    code, out, _ = run("db", "import", "records.jsonl.gz", "--data", "two", "--json")
    assert (code, json.loads(out)["candidates"]) == (0, 0)
    assert run("db", "merge", "one", "--data", "two")[0] == 0
    assert run("db", "merge", "absent", "--data", "two")[0] == 2
    assert run("db", "merge", "absent", "--data", "three")[0] == 2
    assert run("db", "import", "absent.jsonl", "--data", "three")[0] == 2
    assert run("db", "info", "--db", f"sqlite:///{home}/three.db", "--data", "one")[0] == 2
    assert not (home / "three").exists(), "what cannot be had leaves no new database behind"
    assert not (home / "three.db").exists()
    assert f"merged into a new tuning database in {home / 'three'}: " in run("db", "merge", "one", "--data", "three")[1]
    assert "merged: " in run("db", "merge", "one", "--data", "three")[1]
    for url in ("postgresql://user:secret@host/name", "postgresql://user@host/name?password=secret"):
        code, _, err = run("db", "merge", url, "--data", "two")
        assert (code, "host/name is a URL" in err, "--other-data" in err, "secret" in err) == (2, True, True, False)
    code, out, _ = run("db", "gc", "--data", "one", "--older-than", 0, "--dry-run", "--json")
    assert (code, json.loads(out)["blobs"]) == (0, 1)
    code, out, _ = run("db", "gc", "--data", "one", "--older-than", "90d", "--json")
    assert (code, json.loads(out)["blobs"]) == (0, 0)
    assert run("db", "gc", "--data", "one", "--older-than", 0, "--vacuum")[0] == 0
    code, out, _ = run("db", "info", "--data", "one", "--json")
    assert (code, json.loads(out)["blobs"]) == (0, 0)


def test_an_export_and_a_merge_name_the_artifacts_that_are_lost(run: Run, home: Path) -> None:
    from tirgemm.tuning_db import Database, SqlStore

    with Database.embedded(home / "one") as database:
        SqlStore(database).put_kernel(kernel(artifact_sha256="0" * 64))
    words = f"artifact {'0' * 64} is lost or damaged: its kernels are left out\n"
    code, out, err = run("db", "export", "records.jsonl", "--artifacts", "--data", "one")
    assert (code, "kernels" in out, err) == (0, False, words)
    code, out, err = run("db", "merge", "one", "--data", "two")
    assert (code, "0 kernels" in out, "missing" in out, err.endswith(words)) == (0, True, False, True)
    code, out, err = run("db", "merge", "one", "--data", "two", "--json")
    assert (code, json.loads(out)["missing"]) == (0, ["0" * 64])


def test_what_is_no_whole_records_file_leaves_no_new_database_behind(run: Run, home: Path) -> None:
    from tirgemm.tuning_db import Database, SqlStore

    with Database.embedded(home / "one") as database:
        SqlStore(database).put_device(device("cpu"))
    assert run("db", "export", "whole.jsonl.gz", "--data", "one")[0] == 0
    packed = (home / "whole.jsonl.gz").read_bytes()
    lines = gzip.decompress(packed).splitlines(keepends=True)
    for name, data in (
        ("words.jsonl", b"hello\n"),
        ("empty.jsonl", b""),
        ("cut.jsonl.gz", packed[: len(packed) * 2 // 3]),
        ("short.jsonl", b"".join(lines[:-1])),
        ("wrong.jsonl", lines[0] + b'{"kind": "device"}\n'),
    ):
        (home / name).write_bytes(data)
        for place in (("--data", "new"), ("--data", "new", "--db", f"sqlite:///{home}/new.db")):
            code, out, err = run("db", "import", name, *place)
            assert (code, out, name in err) == (2, "", True)
    assert not list(home.glob("new*"))
    assert run("db", "import", "whole.jsonl.gz", "--data", "new")[0] == 0
    code, _, err = run("db", "import", "short.jsonl", "--data", "new")
    assert (code, "get the file again" in err) == (2, True)


def test_a_key_of_a_new_database_says_that_it_is_new(run: Run, home: Path) -> None:
    code, out, err = run("keys", "create", "ci", "--data", "absent")
    assert (code, out.startswith("tirgemm_")) == (0, True)
    assert err.startswith(f"there is a new tuning database in {home / 'absent'}\n")
    assert "new tuning database" not in run("keys", "create", "ci", "--data", "absent")[2]


def test_a_device_that_nothing_was_recorded_of_is_none_of_the_database(run: Run) -> None:
    code, _, err = run("tune", SHAPE, "--device", "sm_90a", "--data", "one")
    assert (code, "sm_90a" in err) == (1, True)
    assert json.loads(run("db", "info", "--data", "one", "--json")[1])["devices"] == []
    code, _, err = run("db", "train", "--data", "one")
    assert (code, err) == (2, "error: the records are of no device; measure something first\n")


def test_a_data_folder_that_cannot_be_written_is_read_by_the_commands_that_only_read(run: Run, home: Path) -> None:
    from tirgemm.tuning_db import Database, SqlStore

    (home / "one").mkdir()
    with Database.embedded(home / "one") as database:
        store = SqlStore(database)
        store.add_candidate(candidate(1))
        kernel_id = store.put_kernel(kernel(artifact_sha256=store.put_blob(b"artifact"), artifact_bytes=8)).id
    with read_only(home / "one"):
        assert kernel_id in run("kernels", "list", "--data", "one")[1]
        assert "1 measured" in run("candidates", str(candidate(1).gemm), "--data", "one")[1]
        assert "blobs: 1" in run("db", "info", "--data", "one")[1]
        assert run("db", "check", "--data", "one")[0] == 0
        assert "1 kernel" in run("db", "export", "--artifacts", "records.jsonl", "--data", "one")[1]
        assert "1 blobs" in run("db", "backup", "backup", "--data", "one")[1]
        _, _, err = run("show", kernel_id, "--data", "one")
        assert f"kernel {kernel_id}: the file is damaged" in err, err
        for command in (("kernels", "pin", kernel_id), ("db", "prune", "--older-than", "1s")):
            code, _, err = run(*command, "--data", "one")
            assert (code, "cannot be written" in err) == (1, True), command


def test_records_are_collected_without_a_kernel(run: Run) -> None:
    asked = ("db", "collect", "24x17x9:f32:nn", "--device", "cpu", "--configs", 2, "--data", "one", "--json")
    code, out, _ = run(*asked)
    assert (code, json.loads(out)["statuses"]) == (0, {"measured": 2})
    assert json.loads(run(*asked)[1])["statuses"] == {}
    counts = json.loads(run("db", "info", "--data", "one", "--json")[1])
    assert (counts["candidates"], counts["rows"]["kernels"]) == ({"measured": 2}, 0)
    code, out, _ = run(*asked, "--recorded", "25x17x9:f32:nn")
    collected = json.loads(out)
    assert (code, collected["problems"], collected["statuses"]) == (0, 1, {}), "both are of this environment"
    assert "no config of 25x17x9:f32:nn is recorded in sustained" in collected["refused"]["25x17x9:f32:nn"]
    code, out, _ = run("db", "collect", "25x17x9:f32:nn", "--recorded", "--device", "cpu", "--data", "two")
    assert (code, "0 problems, sustained into a new tuning database in " in out) == (1, True), "all are refused"
    assert run(*asked[:5], "--configs", 100_001, "--data", "three")[0] == 2
    assert not Path("three").exists()
    code, _, err = run("db", "collect", "--device", "cpu", "--data", "one")
    assert (code, "--suite" in err) == (2, True)


def test_a_ranking_model_is_trained_on_the_records_of_a_file_or_of_the_database(
    run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.helpers.ranking import H200, PROBLEMS, made_up, slow_pingpong
    from tirgemm.families.common.ranking_model import user_file
    from tirgemm.tuning import ranking_training
    from tirgemm.tuning_db import Database, SqlStore, transfer

    # Twenty models are trained, of whose choices nothing is asked.
    monkeypatch.setattr(ranking_training, "ROUNDS", 50)
    alike = H200.with_(model="NVIDIA H100 80GB HBM3")
    for folder, of, name in (("one", H200, "records.jsonl.gz"), ("two", alike, "alike.jsonl.gz")):
        (home / folder).mkdir()
        with Database.embedded(home / folder) as database:
            store = SqlStore(database)
            store.put_device(of)
            store.put_device(device("cpu"))  # which nothing was recorded of
            for gemm in PROBLEMS:
                for candidate in made_up(gemm, slow_pingpong, 12):
                    store.add_candidate(candidate.with_(device_key=of.key))
            transfer.export_records(database, home / name)
    code, out, _ = run("db", "train", "--data", "one", "--json")
    trained = json.loads(out)
    assert (code, trained["problems"], Path(trained["file"])) == (0, len(PROBLEMS), user_file(H200.key))
    code, out, _ = run(
        "db", "train", "--records", "records.jsonl.gz", "--device", "sm_90a", "--output", "m.gz", "--json"
    )
    assert (code, json.loads(out)["records_sha256"]) == (0, trained["records_sha256"])
    assert (home / "m.gz").stat().st_size == json.loads(out)["bytes"]
    assert "trained on" in run("db", "train", "--data", "one")[1]
    with monkeypatch.context() as untrained:
        untrained.delattr(ranking_training, "held_out")
        code, _, err = run("db", "train", "--data", "one", "--output", "one")
    assert (code, "--output is one, which is a folder" in err) == (2, True)
    code, _, err = run("db", "train", "--data", "one", "--device", "sm_80")
    assert (code, H200.key in err) == (2, True)
    code, _, err = run("db", "train", "--records", "records.jsonl.gz", "--records", "alike.jsonl.gz")
    keys = ", ".join(sorted([H200.key, alike.key]))
    assert (code, err) == (
        2,
        f"error: no --device is given; the records are of the devices {keys}: name one of them\n",
    )
    both = ("--records", "records.jsonl.gz", "--records", "alike.jsonl.gz", "--device", H200.key, "--output", "m.gz")
    code, out, _ = run("db", "train", *both, "--json")
    assert (code, json.loads(out)["devices"]) == (0, {H200.key: len(PROBLEMS), alike.key: len(PROBLEMS)})
    assert f"{len(PROBLEMS)} of the problems were measured on {alike.key}" in run("db", "train", *both)[1]
