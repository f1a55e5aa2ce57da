"""Configs of which some knobs are named: what follows, what is refused, and the command lines that docs/explain.md
prints."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from scripts.stored_kernel import gpu_kernel
from tests.helpers.command_line import own_folders
from tests.newcomer.newcomer import fault
from tests.newcomer.pages import Block, blocks
from tests.newcomer.sessions import COLUMNS, Ran
from tirgemm.detect import why_no_gpu
from tirgemm.errors import InvalidConfig
from tirgemm.families import FAMILIES, family_named, rejected
from tirgemm.gemm import Gemm
from tirgemm.hardware import named_device
from tirgemm.service import cli
from tirgemm.tuning.explain import chosen, with_knobs
from tirgemm.tuning.rivals import differences
from tirgemm.tuning_db.data_folder import open_store

ROOT = Path(__file__).resolve().parents[3]
LARGE = Gemm.parse("4096x4096x4096:f16:nt")
A100 = named_device("sm_80")


def test_a_knob_that_the_rules_tie_to_a_named_one_follows_it() -> None:
    simt = family_named("simt")
    base = simt.default(LARGE, A100, "sustained")
    config = with_knobs(simt, LARGE, A100, base, "pad=0,pipeline=register")
    assert {(d.knob, d.other) for d in differences(base, config)} == {
        ("pad", 0),
        ("pipeline", "register"),
        ("barriers", 2),
    }
    assert rejected(simt, LARGE, base.with_(pad=0, pipeline="register"), A100) is not None, "it alone breaks a rule"


@pytest.mark.parametrize(
    ("name", "arch", "least"),
    [("simt", "sm_80", 40), ("mma", "sm_80", 40), ("wmma", "sm_80", 25), ("wgmma", "sm_90a", 60)],
)
def test_every_choice_of_every_knob_is_taken_or_refused_by_a_rule(name: str, arch: str, least: int) -> None:
    family, target = FAMILIES[name], named_device(arch)
    base = family.default(LARGE, target, "sustained")
    taken, refusals = 0, []
    for knob in family.space(LARGE, target).knobs:
        for choice in knob.choices:
            try:
                config = with_knobs(family, LARGE, target, base, f"{knob.name}={choice}")
            except InvalidConfig as error:
                refusals.append((f"{knob.name}={choice}", str(error)))
                continue
            taken += 1
            assert config[knob.name] == choice
            assert rejected(family, LARGE, config, target) is None
            assert len(differences(base, config)) <= 3
    assert taken >= least
    assert all(": rule " in words and asked in words for asked, words in refusals)


def test_the_fewest_and_nearest_knobs_follow() -> None:
    simt = family_named("simt")
    base = simt.default(LARGE, A100, "sustained")
    assert [(d.knob, d.other) for d in differences(base, with_knobs(simt, LARGE, A100, base, "block_k=8"))] == [
        ("block_k", 8),
        ("unroll", 8),
    ]
    both = with_knobs(simt, LARGE, A100, base, "block_k=8,unroll=8")
    assert [d.knob for d in differences(base, both)] == ["block_k", "unroll"], "a named knob is never changed"


def test_knobs_of_a_base_that_is_no_default() -> None:
    base = family_named("simt").default(LARGE, A100, "sustained").with_(raster=4)
    config = chosen(LARGE, A100, knobs="pad=0", base=base)
    assert (config["raster"], config["pad"]) == (4, 0)


def page_commands() -> list[tuple[Block, str]]:
    page = ROOT / "docs" / "explain.md"
    printed = [(block, command) for block in blocks(page, ROOT) if block.is_run for command in block.commands()]
    assert len(printed) > 4
    # What was recorded on a GPU is drawn in test_timelines.py.
    printed = [(block, command) for block, command in printed if "recorded" not in block.needs]
    return [*printed, (printed[0][0], "tirgemm explain --kernel ID")]


@pytest.mark.parametrize(("block", "line"), page_commands(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_of_the_page_works_as_printed(
    block: Block, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if "gpu" in block.needs and not why_no_gpu():
        pytest.skip("a GPU is here: test_timeline_gpu.py records on it")
    own_folders(tmp_path, monkeypatch, COLUMNS)
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    words = shlex.split(line, comments=True)
    assert words[:2] == ["tirgemm", "explain"]
    if "--kernel" in words:
        # An id is what some tuning gave.
        with open_store(None) as store:
            words[words.index("ID")] = gpu_kernel(store, "129x67x31:f16:nt").id
    code = cli.main(words[1:])
    said = capfd.readouterr()
    printed = said.out + said.err
    assert not fault(block, Ran(code, printed, printed), has_gpu=False, terminal=False)
    if "gpu" in block.needs:
        return
    assert said.out.startswith("What it is\n  problem ")
    assert ("also changed, as simt's rules need it: barriers=2 (not 1)" in said.err) == ("register" in line)
    if "--html" in words:
        assert (tmp_path / words[words.index("--html") + 1]).read_text().startswith("<!doctype html>")


def test_the_config_of_a_stored_kernel_is_explained_with_other_knobs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_store(tmp_path / "data") as store:
        record = gpu_kernel(store, "129x67x31:f16:nt")
    begin = ["explain", "--data", str(tmp_path / "data"), "--config", "pad=0", "--kernel"]
    assert cli.main([*begin, record.kernel_sha256[:8], "--json"]) == 0
    import json

    document = json.loads(capsys.readouterr().out)
    assert (document["kernel"], document["config"]["pad"]) == (None, 0)
    assert cli.main([*begin, record.id[:5]]) == 2, "five digits are too few"
    assert "there is no kernel" in capsys.readouterr().err
