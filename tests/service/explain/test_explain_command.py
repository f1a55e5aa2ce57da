"""``tirgemm explain``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.helpers.scripts import script
from tests.service.explain.explained_kernels import A100, SMALL
from tirgemm.analysis.explanation import AS_WRITTEN
from tirgemm.errors import InvalidConfig
from tirgemm.families import family_named
from tirgemm.service import cli
from tirgemm.tuning.explain import with_knobs


def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["explain", *arguments, "--data", str(tmp_path / "data")])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_command_prints_a_report_or_one_document_and_writes_the_page(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = [str(SMALL), "--device", "sm_80", "--family", "simt"]
    code, out, _ = run(capsys, tmp_path, *options, "--as-written")
    assert code == 0
    assert AS_WRITTEN in out
    assert re.search(r"\[1\] stores of a_tile: lane \d+ at byte \d+ and lane \d+ at byte \d+ want words", out)
    assert "Words and signs" not in out
    file = tmp_path / "page.html"
    code, out, err = run(capsys, tmp_path, *options, "--config", "pad=0", "--html", str(file), "--json")
    document = json.loads(out)
    assert (code, err, document["html"], document["config"]["pad"], document["default"]) == (0, "", str(file), 0, False)
    assert file.read_text().startswith("<!doctype html>")
    assert not (tmp_path / "data").exists(), "explaining a config makes no data folder"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "neither GEMM nor --kernel"),
        (["64x64x64", "--kernel", "ab"], "GEMM '64x64x64' and --kernel 'ab' given"),
        (["--kernel", "ab", "--family", "simt"], "leave out --family simt"),
        (["--kernel", "ab", "--as-written"], "--kernel ab is told from its machine code: leave out --as-written"),
        (["--kernel", "ab", "--regime", "isolated", "--m", "3"], "leave out --m 3, --regime isolated"),
        (["--kernel", "ab"], "there is no kernel 'ab'"),
        (
            ["--timeline", "one.json.gz", "--html", "page.html", "--family", "simt"],
            "what one.json.gz has is drawn as it is: leave out --family simt, --html page.html",
        ),
        (["0x1x1"], "gemm field m is 0"),
        (["64x64x64", "--device", "sm_70"], "device 'sm_70' is unknown"),
        (["64x64x64", "--device", "cpu"], "device cpu is no GPU"),
        (["64x64x64", "--device", "cpu", "--family", "x86"], "what is explained are GPU kernels"),
        (["64x64x64", "--device", "sm_80", "--family", "sim"], "family 'sim' is unknown; families are"),
        (["64x64x64", "--device", "sm_80", "--family", "x86"], "family x86 does not write 64x64x64:f16:nt for sm_80"),
        (
            ["64x64x64", "--device", "sm_80", "--family", "wgmma"],
            "family wgmma does not write 64x64x64:f16:nt for sm_80",
        ),
        (["64x64x64:f32:nn", "--device", "sm_80", "--family", "wmma"], "family wmma does not write"),
        (["64x64x64", "--device", "sm_80", "--config", "pad=0"], "'pad=0' are of no family"),
        (
            ["64x64x64:f16:nt", "--device", "sm_80", "--config", "pad=0"],
            "are of no family: name it with --family, one of simt, mma, wmma ",
        ),
        (["64x64x64", "--device", "cpu", "--config", "pad=0"], "device cpu is no GPU"),
        (
            ["64x64x64", "--device", "sm_80", "--family", "simt", "--config", "pod=0"],
            "simt has no knob 'pod'; its knobs are",
        ),
        (
            ["64x64x64", "--device", "sm_80", "--family", "simt", "--config", "pad=5"],
            "simt knob pad is '5'; choices for",
        ),
        (["64x64x64", "--device", "sm_80", "--family", "simt", "--config", "pad"], "'pad' is not name=value"),
        (
            ["64x64x64", "--device", "sm_80", "--family", "simt", "--config", "block_m=8,thread_m=16"],
            "rule thread_tile",
        ),
        (
            ["64x64x64", "--device", "sm_80", "--m", "65", "--as-written"],
            "m is 65; 64x64x64:f16:nt has m from 64 to 64",
        ),
        (["64x64x64", "--device", "sm_80", "--regime", "fast"], "regime is 'fast'"),
        (
            ["64x64x64", "--device", "sm_80", "--as-written", "--measured", "absent"],
            "no results file can be read from absent: there is no such folder",
        ),
    ],
)
def test_bad_input_is_refused_with_its_value(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], says: str
) -> None:
    code, out, err = run(capsys, tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert says in err.replace("\n", " ")


def test_an_unknown_id_in_a_store_names_the_newest(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from scripts.stored_kernel import gpu_kernel
    from tirgemm.tuning_db.data_folder import open_store

    with open_store(tmp_path / "data") as store:
        known = gpu_kernel(store, str(SMALL)).id
    code, _, err = run(capsys, tmp_path, "--kernel", "feed")
    assert code == 2
    assert f"there is no kernel 'feed'; the newest are {known}" in err.replace("\n", " ")
    code, _, err = run(capsys, tmp_path, "--kernel", "u.tirgemm")
    assert (code, "for a file the problem that `tirgemm show` names" in err.replace("\n", " ")) == (2, True)
    code, out, _ = run(capsys, tmp_path, "--kernel", known, "--json")
    assert (code, json.loads(out)["kernel"]) == (0, known)


def test_knobs_are_taken_by_their_words_and_once() -> None:
    family = family_named("simt")
    default = family.default(SMALL, A100, "sustained")
    changed = default.with_(pad=0, pipeline="none")
    assert with_knobs(family, SMALL, A100, default, " pad = 0 , pipeline=None,") == changed
    assert with_knobs(family, SMALL, A100, default, "") == default
    with pytest.raises(InvalidConfig, match="pad is given twice: 0 and '4'"):
        with_knobs(family, SMALL, A100, default, "pad=0,pad=4")


def test_the_examples_of_the_page_have_the_sections_that_the_commands_print() -> None:
    examples = script("scripts/render_explain_examples.py")
    assert examples.differences(examples.PAGE.read_text()) == []


def test_an_example_without_a_section_is_noticed() -> None:
    examples = script("scripts/render_explain_examples.py")
    arguments = f"{SMALL} --device sm_80 --family simt --as-written"
    block = f"<!-- explain:{arguments} -->\n{examples.block(arguments)}<!-- /explain -->"
    assert examples.differences(block) == []
    assert examples.differences(block.replace("Global memory", "Golbal memory"))
    assert examples.differences(block.replace("<!-- run: output -->", ""))
    assert examples.differences(block.replace("block_m=", "block_m=1", 1)), "another config"
    assert examples.differences(block.replace("barriers=", "barriers=1", 1)), "another one in its last line"
    assert examples.differences(block.replace("registers  ", "registers 1", 1)) == [], "a figure"
    assert examples.rendered(block) == block
