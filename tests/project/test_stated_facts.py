"""What pages say of families and results, held to the families and to the results files."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suite_tables import AVERAGED
from tests.helpers.scripts import script
from tests.newcomer.pages import all_pages
from tirgemm.bench.suite_file import Suite
from tirgemm.bench.suites import named_suites, suite_named
from tirgemm.families import FAMILIES
from tirgemm.families.common.ranking_model import LEAST_PROBLEMS, kinds_of
from tirgemm.gemm import Gemm, Range
from tirgemm.hardware import ARCHITECTURES, named_device
from tirgemm.tuning_db import shipped
from tirgemm.tuning_db.shipped.records import ShippedFile, ShippedRecords

ROOT = Path(__file__).resolve().parents[2]

NOT_YET = "not measured yet"

# What stands in place of a table without figures.
EMPTY_TABLE = "Not measured yet: `"

HELD_OUT = "nvidia-h200/held_out"

# The rows of what the goals are compared with, as a pattern: `standard` was measured last on an earlier suite.
TODAYS = r"(?:\*\*judge-120, judge-121 together\*\*(?=[^|]*\| (?:zero_shot|quick) )|judge-116(?=[^|]*\| standard ))"


def test_readme_names_the_architectures_that_each_family_is_written_for() -> None:
    rows = dict(re.findall(r"^\| \[`(\w+)`\]\([^|]*\| ([^|]*) \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    gpus = {name: family for name, family in FAMILIES.items() if name != "x86"}
    assert rows.keys() == {*gpus, "x86"}
    gemms = [Gemm.parse(f"4096x4096x4096:{dtype}:nt") for dtype in ("f16", "f32")]
    for name, family in gpus.items():
        devices = {arch: named_device(arch) for arch in ARCHITECTURES}
        able = {a for a, device in devices.items() if any(family.supports(gemm, device) is None for gemm in gemms)}
        assert set(re.findall(r"sm_\w+", rows[name])) == able, name
        newer = named_device("sm_90a").with_(arch="sm_100")
        assert all(family.supports(gemm, newer) for gemm in gemms), name
    started = (ROOT / "docs" / "getting-started.md").read_text().partition("## Install")[0]
    assert set(re.findall(r"`(sm_\w+)` \((?:A100|RTX|H100)", started)) == set(ARCHITECTURES)


def sections(text: str) -> Iterator[tuple[str, str]]:
    """Each heading of a page, as an anchor, with what stands between it and the next one."""
    for title, body in re.findall(r"^#+ (.*)\n((?:(?!#+ ).*\n)*)", text, re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-"), body


def test_a_link_to_a_table_without_figures_says_so() -> None:
    unmeasured = {
        anchor for anchor, body in sections((ROOT / "docs" / "results.md").read_text()) if EMPTY_TABLE in body
    }
    links = 0
    for path in all_pages(ROOT):
        if path.parent.name == "decisions":
            continue
        for part in re.split(r"\n\n|\n(?=[|-] )", path.read_text()):
            for page, anchor in re.findall(r"\]\(([\w./]*)#([\w-]+)\)", part):
                if Path(page or path).name == "results.md" and anchor in unmeasured:
                    links += 1
                    assert NOT_YET in " ".join(part.lower().split()), (path.name, part)
    assert links or not unmeasured


def table(page: str, name: str) -> str:
    """What stands between the markers of a table of results."""
    text = (ROOT / "docs" / page).read_text()
    return text.partition(f"<!-- results:{name} -->")[2].partition(f"<!-- /results:{name} -->")[0]


def test_the_goals_of_held_out_problems_are_compared_with_the_tables_figures() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    row = rf"^\| {TODAYS}, rows of whole 16 bytes; \d+ \| (\w+) \| ([\d.]+) \(([\d.]+)[^|]*\| ([\d.]+)"
    rows = {name: figures for name, *figures in re.findall(row, table("results.md", HELD_OUT), re.M)}
    means = dict(re.findall(r"^\| `(\w+)`, geometric mean: [^|]*\| ([\d.]+ and [\d.]+)", text, re.M))
    line = r"^\| `(\w+)`, worst problem over `torch.matmul`: ([\d.]+) \| ([\d.]+) \| [\d.]+ \| (yes|no) \|$"
    goals = re.findall(line, text, re.M)
    worst = {name: least for name, _, least, _ in goals}
    assert means == {name: f"{of_torch} and {of_cublaslt}" for name, (of_torch, _, of_cublaslt) in rows.items()}
    assert worst == {name: least for name, (_, least, _) in rows.items() if name in worst}
    assert len(worst) == 2
    assert all((float(least) >= float(goal)) == (said == "yes") for _, goal, least, said in goals)


def test_what_was_reached_on_judge_107_alone_is_what_the_table_has() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    row = r"^\| judge-107, rows of whole 16 bytes; 52 \| (\w+) \| ([\d.]+) \(([\d.]+)\) \| ([\d.]+)"
    rows = {name: figures for name, *figures in re.findall(row, table("results.md", HELD_OUT), re.M)}
    goals = re.findall(r"^\| mean of `(\w+)`: ([\d.]+) and ([\d.]+) \| ([\d.]+) and ([\d.]+) \| yes \|$", text, re.M)
    assert {name: [of_torch, of_cublaslt] for name, *_, of_torch, of_cublaslt in goals} == {
        name: [of_torch, of_cublaslt] for name, (of_torch, _, of_cublaslt) in rows.items()
    }
    assert all(
        float(reached) >= float(goal) for _, *pairs in goals for goal, reached in zip(pairs[:2], pairs[2:], strict=True)
    )
    least = re.search(r"^\| least of `zero_shot` over `torch.matmul`: ([\d.]+) \| ([\d.]+) \| yes \|$", text, re.M)
    assert least
    assert least[2] == rows["zero_shot"][1]
    assert float(least[2]) >= float(least[1])


def test_what_the_page_says_of_other_held_out_suites_is_what_the_tables_have() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    row = r"^\| ([^|]*), rows of whole 16 bytes; \d+ \| (\w+) \| ([\d.]+) \(([\d.]+)[^|]*\| ([\d.]+)"
    rows = {(name, variant): [*of] for name, variant, *of in re.findall(row, table("results.md", HELD_OUT), re.M)}

    def means(suite: str, variant: str) -> str:
        of_torch, _, of_cublaslt = rows[suite, variant]
        return f"{of_torch} and {of_cublaslt}"

    both = "**judge-107, judge-108 together**"
    assert f"together have {means(both, 'zero_shot')} for `zero_shot`, {means(both, 'quick')} for `quick`" in text
    mine, quick = (means("twice-116", variant) for variant in ("standard", "quick"))
    before = f"{means('judge-108', 'standard')} for {means('judge-108', 'quick')}"
    assert (
        f"Of `twice-116`, the first 40 of them, it has {mine} where `quick` has {quick}, of `judge-108` {before};"
        in text
    )
    least = rows["twice-116", "standard_again"][1]
    again = means("twice-116", "standard_again")
    assert f"each of the 40 the least is {least}, and the aligned means are {again}." in text
    (row_of_two,) = re.findall(
        r"^\| twice-116 \| sustained \| (\d+) \| \d+ \| (\d+) ", table("results.md", "nvidia-h200/repeated"), re.M
    )
    searched, within = map(int, row_of_two)
    assert within >= 0.95 * searched
    assert f"of {searched} problems 95 % lie within 2 % of each other. It is reached" in text


def test_the_goals_of_the_public_grid_are_compared_with_the_tables_figures() -> None:
    ratios, counts = r" ([\d.]+) \([^|]*\| ([\d.]+) \([^|]*\|", r" \d+ \| (\d+) \| (\d+) \|"
    row = rf"^\| grid, all; 300 \| quick \|{ratios}{counts}{ratios}"
    (figures,) = re.findall(row, table("results.md", HELD_OUT), re.M)
    of_torch, of_cublaslt, behind, others, of_torch_2, of_cublaslt_2 = figures
    text = (ROOT / "docs" / "results.md").read_text()
    assert f"| goal | measured | without siblings, of {others} | reached? |" in text
    goal = f"{of_torch} and {of_cublaslt} | {of_torch_2} and {of_cublaslt_2} | yes |"
    assert f"| `quick` on `grid`: 1.12 and 1.08 | {goal}" in text
    assert min(float(of_torch), float(of_torch_2)) >= 1.12
    assert min(float(of_cublaslt), float(of_cublaslt_2)) >= 1.08
    assert f"On {behind} of these 300 the best of cuBLASLt is faster than `quick`" in text


def test_each_figure_of_the_first_screen_of_results_stands_in_a_table_that_its_row_links_to() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    rows = re.findall(r"^\| \[[^\]]*\]\(#([\w-]+)\)(.*)\|$", text.partition("\n## ")[0], re.M)
    tables = {anchor: "\n".join(re.findall(r"^\|.*$", body, re.M)) for anchor, body in sections(text)}
    figures = [(anchor, figure) for anchor, cells in rows for figure in re.findall(r"\d\.\d{3}", cells)]
    assert len(figures) > 10
    assert not [(anchor, figure) for anchor, figure in figures if figure not in tables[anchor]]


def test_each_goal_of_held_out_problems_is_compared_without_siblings_too() -> None:
    text = (ROOT / "docs" / "results.md").read_text()
    start = rf"{TODAYS}, rows of whole 16 bytes; (?P<all>\d+) \| (?P<variant>\w+) \|"
    ratio = r" (?P<{0}>[\d.]+) \((?P<{0}_worst>[\d.]+)(?:; (?P<{0}_count>\d+) of \d+)?\) \|"
    pattern = start + ratio.format("t") + ratio.format("c") + r"[\d |]+\| (?P<others>\d+) \|"
    pattern += ratio.format("t2") + ratio.format("c2")
    goals = dict(re.findall(r"^\| `(\w+)`, geometric mean: (.*) \|$", text, re.M))
    worst = dict(
        re.findall(r"^\| `(\w+)`, worst problem over `torch.matmul`: [^|]*\| [\d.]+ \| ([\d.]+) \|", text, re.M)
    )
    rows = list(re.finditer(pattern, table("results.md", HELD_OUT)))
    assert {row["variant"] for row in rows} == goals.keys() > worst.keys()
    for row in rows:
        goal, measured, others, reached = goals[row["variant"]].split(" | ")
        of_torch, of_cublaslt = map(float, goal.split(" and "))
        assert measured.startswith(f"{row['t']} and {row['c']}, of {row['t_count'] or row['all']} problems")
        assert others == f"{row['t2']} and {row['c2']}, of {row['t2_count'] or row['others']} problems"
        said = [
            f"{name} {'yes' if float(row[key]) >= limit else 'no'}"
            + ("" if (float(row[key]) >= limit) == (float(row[f"{key}2"]) >= limit) else ", without siblings no")
            for name, key, limit in (("over `torch.matmul`", "t", of_torch), ("over cuBLASLt", "c", of_cublaslt))
        ]
        assert reached == "; ".join(said)
        assert worst.get(row["variant"], row["t2_worst"]) == row["t2_worst"]


def model_speeds(device: str) -> dict[str, tuple[str, str]]:
    """Geometric mean and least of each column of a device's table of whole models."""
    lines = re.findall(r"^\| (?:model|geomean) .*", table("results.md", f"{device}/models"), re.M)
    head, total = ([cell.strip() for cell in line.split("|")] for line in lines)
    pairs = {name: re.fullmatch(r"([\d.]+) \(([\d.]+)\)", cell) for name, cell in zip(head, total, strict=True)}
    return {name: (pair[1], pair[2]) for name, pair in pairs.items() if pair}


def test_the_goals_of_whole_models_are_compared_with_the_tables_figures() -> None:
    text = " ".join((ROOT / "docs" / "results.md").read_text().split())
    h200, h100 = model_speeds("nvidia-h200"), model_speeds("nvidia-h100-80gb-hbm3")
    graphs = [[of[f"{name}, graph"] for name in ("tirgemm", "tirgemm_set", "tirgemm_pdl")] for of in (h200, h100)]
    means = [", ".join(mean for mean, _ in of) for of in graphs]
    assert f"| mean: 1.04 | {means[0]} | {means[1]} | yes, but with sets on the H100 |" in text
    assert f"| mean, later: 1.06 | {means[0]} | {means[1]} | no |" in text
    reached = [[float(mean) >= 1.04 for mean, _ in of] for of in graphs]
    assert reached == [[True, True, True], [True, False, True]]
    assert max(float(mean) for of in graphs for mean, _ in of) < 1.06
    least = [min(least for _, least in of) for of in graphs]
    none = f"none beyond the spread of its samples; the least {least[0]} | none; the least {least[1]} | yes |"
    assert f"| none slower | {none}" in text
    assert "beyond the spread of the samples (95 %): none." in table("results.md", "nvidia-h200/models")
    (slower,) = re.findall(r"\(95 %\): (.*)", table("results.md", "nvidia-h100-80gb-hbm3/models"))
    assert ", graph, " not in slower
    eager = {name.removesuffix(", eager"): of for name, of in h200.items() if name.endswith(", eager")}
    assert (
        f"the mean is {eager['tirgemm'][0]} with a kernel for each number of tokens (the least {eager['tirgemm'][1]}), "
        f"{eager['tirgemm_pdl'][0]} with dependent launches ({eager['tirgemm_pdl'][1]}), "
        f"{eager['tirgemm_set'][0]} with sets ({eager['tirgemm_set'][1]})."
    ) in text


def won(regime: str, knob: str, *classes: int) -> dict[str, int]:
    """How many shapes of these classes of m each choice of a knob won, by the table of knobs."""
    part = table("results.md", "nvidia-h200/knobs").partition(f"{regime}; ")[2].partition("isolated; ")[0]
    rows = re.findall(rf"^\| {knob} \| (\w+) \| ([\d |]*?) \| \+", part, re.MULTILINE)
    return {choice: sum(int(counts.split("|")[at].strip() or 0) for at in classes) for choice, counts in rows}


def test_what_won_is_what_the_table_of_knobs_says() -> None:
    text = (ROOT / "docs" / "wgmma.md").read_text().partition("### What won")[2].partition("## Rules")[0]
    every, few, many = range(4), 0, 3
    claims = [
        (won("sustained", "tile_m", few), "64"),
        (won("sustained", "tile_k", few), "128"),
        (won("sustained", "swap", few), "1"),
        (won("sustained", "tile_m", many), "128"),
        (won("sustained", "tile_k", many), "64"),
        (won("sustained", "swap", many), "1"),
        (won("sustained", "schedule", 0, 1, 2), "cooperative"),
        (won("sustained", "reduction", *every), "kernel"),
        (won("isolated", "reduction", *every), "cluster"),
        (won("sustained", "resident", *every), "2"),
    ]
    assert re.findall(r"(\d+ of \d+)", re.sub(r"\d+ and \d+ of \d+", "", text)) == [
        f"{counts[choice]} of {sum(counts.values())}" for counts, choice in claims
    ]
    schedules = won("sustained", "schedule", many)
    assert f"({schedules['cooperative']} and {schedules['pingpong']} of {sum(schedules.values())})" in text


def test_a_kernel_that_is_shown_is_as_fast_as_the_reason_for_it_says() -> None:
    _, _, answer = script("scripts/render_api_examples.py").written()["kernel"].partition("\nHTTP/1.1 ")
    timings = json.loads(answer.partition("\n\n")[2].removesuffix("```\n"))["timings"]
    selection, beside = timings["selection"], timings["sustained"]["baselines"]["default"]
    said = f"{beside['ratio']} times as fast as the default, at least {selection['ratio_low']} with 95% confidence"
    assert selection["reason"] == said
    assert beside["median_us"] == pytest.approx(beside["ratio"] * timings["sustained"]["median_us"], rel=0.01)


def test_an_examples_figures_are_brought_in_line_with_its_reason_alone() -> None:
    as_chosen = script("scripts/example_values.py").as_chosen
    told = {"median_us": 10.0, "baselines": {"numpy_f32": {"median_us": 60.0, "ratio": 6.0}, "default": {"ratio": 0.9}}}
    reason = "1.03 times as fast as the default, at least 1.01 with 95% confidence"
    timings = {"sustained": told, "selection": {"reason": reason, "ratio_low": 0.8}, "search": {"trials": 3}}
    shown = as_chosen(timings)
    assert shown["sustained"]["baselines"] == {
        "numpy_f32": {"median_us": 60.0, "ratio": 6.0},
        "default": {"median_us": 10.3, "ratio": 1.03},
    }
    assert (shown["selection"]["ratio_low"], shown["search"]) == (1.01, {"trials": 3})
    stays = timings | {"selection": {"reason": "the default stays", "ratio_low": 1.0}}
    assert as_chosen(stays) == stays
    assert as_chosen({"sustained": "…", "selection": "…"}) == {"sustained": "…", "selection": "…"}


def test_each_hole_of_wgmma_has_the_figure_of_its_problems() -> None:
    text = (ROOT / "docs" / "wgmma.md").read_text()
    rows = re.findall(r"^\| (\d)\. (?:[^|]*\| ){3}([^|]*) \|$", text, re.M)
    assert [number for number, _ in rows] == list("123456")
    means = r"^\| (\d)\. [^|]*geometric mean \(least\) \| (\w+) \|(?:[^|]*\|){5} ([^|]*) \|"
    measured = {(of[0], of[1]): of[2] for of in re.findall(means, table("results.md", "holes"), re.M)}
    for number, figure in rows:
        assert figure.partition(";")[0] == measured[number, "quick"], number
    assert f"The default has {measured['4', 'zero_shot']}." in text
    behind = [number for number, _ in rows if float(measured[number, "quick"].split()[0]) < 1]
    assert f"**{' and '.join(behind)} are still behind**" in text
    for variant, words in (("quick", "by `quick`"), ("zero_shot", "by the default")):
        shares = re.findall(rf"{variant} .* ([\d.]+)% \|$", table("results.md", "nvidia-h200/stores"), re.M)
        least, most = (min(map(float, shares)), max(map(float, shares)))
        assert f"{least / 100:.2f} to {most / 100:.2f} {words}" in text


def test_the_ranking_models_have_learnt_the_kinds_of_problems_that_the_page_names() -> None:
    paths = sorted((ROOT / "tirgemm" / "families" / "common" / "rankings").glob("*.json.gz"))
    assert paths
    square = Gemm(64, 64, 64)
    known: tuple[dict[str, Any], ...]
    known = ({}, {"dtype": "bf16"}, {"out": "f32"}, {"acc": "f16"}, {"batch": 8}, {"beta": True})
    unknown = ({"dtype": "f32", "out": "f32"}, {"batch": 8, "beta": True}, {"out": "f32", "beta": True})
    for path in paths:
        domain = json.loads(gzip.decompress(path.read_bytes()))["domain"]
        kinds = {kind for of in domain.values() for kind, sizes in of.items() if len(sizes) >= LEAST_PROBLEMS}
        plain = {kind.partition(",")[0] for kind in kinds}
        assert plain == {kinds_of(square.with_(**changed))[0] for changed in known}, path.name
        assert not plain & {kinds_of(square.with_(**changed))[0] for changed in unknown}


def test_as_much_is_shipped_as_is_said() -> None:
    text = " ".join((ROOT / "docs" / "tuning.md").read_text().split())
    file = r"`(?:tuning_db/shipped/)?(nvidia-[\w.-]+)\.jsonl\.gz` has "
    pattern = file + r"(?:.*? )??([\d,]+) candidates .*? for ([\d,]+) (?:problems|sizes)"
    stated = re.findall(pattern, text)
    assert [name for name, _, _ in stated] == ["nvidia-h200", "nvidia-h100-80gb-hbm3", "nvidia-h200.sets"]
    for name, count, places in stated:
        with gzip.open(ROOT / "tuning_db" / "shipped" / f"{name}.jsonl.gz", "rt") as records:
            header = json.loads(records.readline())
        said = [int(number.replace(",", "")) for number in (count, places)]
        digits = -1 if name.endswith(".sets") else -2
        assert said == [round(header["counts"]["candidate"], -2), round(len(header["index"]), digits)], name


def test_as_many_configs_of_the_sizes_of_kernel_sets_are_shipped_as_the_decision_says() -> None:
    text = " ".join((ROOT / "docs" / "decisions" / "shipped-records.md").read_text().split())
    each = r"The file has (\d+) problems of (\d+) to (\d+) configs each, "
    pattern = each + r"most often (\d+) \((\d+) problems\), ([\d,]+) configs in all"
    (stated,) = re.findall(pattern, text)
    (file,) = (of for of in ShippedRecords().files() if shipped.holds_kernel_sets(of.path))
    counts = Counter(len(file.candidates(*place)) for place in file.places)
    often, problems = counts.most_common(1)[0]
    every = sum(configs * of for configs, of in counts.items())
    said = [int(number.replace(",", "")) for number in stated]
    assert said == [counts.total(), min(counts), max(counts), often, problems, every]


def test_as_many_kernel_sets_are_shipped_as_are_said() -> None:
    text = " ".join((ROOT / "docs" / "tuning.md").read_text().split())
    (stated,) = re.findall(r" of (\d+) of the (\d+) kernel sets of suite `sets`", text)
    sets = {
        gemm for path in shipped.FOLDER.glob("*") if shipped.holds_kernel_sets(path) for gemm in ShippedFile(path).gemms
    }
    suite = {*suite_named("sets").gemms}
    assert [int(count) for count in stated] == [len(suite & sets), len(suite)]


def test_of_the_suites_the_shipped_searches_name_no_environment_and_the_races_do() -> None:
    """As docs/tuning.md says, and which suites answer without a race."""
    suites = {str(gemm) for path in named_suites().values() for gemm in Suite.read(path).gemms}
    every = [(file, place) for file in ShippedRecords().files() for place in file.places if place[1] in suites]
    places = [(file, place) for file, place in every if not shipped.holds_kernel_sets(file.path)]
    assert len(places) > 300
    for file, place in every:
        if shipped.holds_kernel_sets(file.path):
            assert isinstance(Gemm.parse(place[1]).m, Range), "of a single m the other file has what there is"
            named = {s.conditions["fingerprint"] for c in file.candidates(*place) for s in c.sample_sets}
            assert named <= {d.fingerprint for d in file.devices if ("driver", "580.159.04") in d.environment}
    known: set[Any] = set()
    raced: set[Any] = set()
    for file, (key, gemm, regime) in places:
        drivers = {device.fingerprint: dict(device.environment).get("driver") for device in file.devices}
        for samples in (s for candidate in file.candidates(key, gemm, regime) for s in candidate.sample_sets):
            of = drivers.get(samples.conditions.get("fingerprint", ""))
            assert of == ("580.159.04" if samples.reason == "report" else None)
            (raced if samples.reason == "report" else known).add((gemm, regime))
    averaged, odd = ({str(gemm) for n in names for gemm in suite_named(n).gemms} for names in (AVERAGED, ["odd"]))
    assert raced == {(g, regime) for g, regime in known if g in averaged or (g in odd and regime == "sustained")}
    assert len(raced) == 342
