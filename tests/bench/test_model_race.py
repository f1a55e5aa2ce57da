"""The race of whole models, on the CPU with tiny ones, and the check and the table of its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import check
from benchmarks.history import History
from benchmarks.models import document as models
from tests.helpers.sample_source import SampleSource
from tests.observed_calls import observed
from tirgemm.bench import results
from tirgemm.bench.results import load, write
from tirgemm.errors import InvalidRequest
from tirgemm.gemm import Gemm
from tirgemm.kernel_source import Preparation, run_in_background

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

MODELS = ["mixtral-attention-tiny", "qwen-tiny"]


def small(name: str, place: str, dtype: Any) -> Any:
    """In place of Hugging Face's decoder of that name."""
    from tests.torch.small_decoder import small_decoder

    return small_decoder(24 if name == "qwen-tiny" else 0, place, dtype)


def race(tmp_path: Path, *more: str, source: Any = None, make: Any = small) -> int:
    from benchmarks.models.race import main

    options = ["--device", "cpu", "--tokens", "1", "3", "--turns", "3", "--turn-seconds", "0.001", *more]
    return main([*options, "--lock-dir", str(tmp_path), "--out", str(tmp_path / models.FILE)], source, make)


def rows_of(path: Path) -> list[Any]:
    rows: list[Any] = load(path)["rows"]
    return rows


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of both variants of one tiny model, one of whose kernels cannot be made."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("models")
    source = SampleSource(fails=False)
    assert race(folder, "--models", MODELS[0], source=source) == 0
    assert len(source.made) == 2 * 3
    assert [len(group) for group in source.groups] == [4, 2], "two linears for 1 and 3, then for 1..3 rows"
    return folder / models.FILE


def test_every_row_is_raced_against_pytorch_and_agrees_with_it(raced: Path) -> None:
    rows = rows_of(raced)
    assert [models.key_of(row) for row in rows] == [
        (MODELS[0], "f32", tokens, "eager", variant) for variant in ("tirgemm", "tirgemm_set") for tokens in (1, 3)
    ]
    for row in rows:
        assert len(row["samples_ms"]) == len(row["pytorch_samples_ms"]) == 3
        assert 0 < row["difference"] < 1e-5, "not PyTorch's own kernels"
        assert 0 <= row["pytorch_difference"] <= 2.001 * row["pytorch_error"], "two of PyTorch's own ways"
        assert row["kernels"] == {"default": 2}
    assert check.faults(raced, history=History(Path("/"))) == []


def test_resuming_keeps_rows_and_adds_what_is_missing(raced: Path, tmp_path: Path) -> None:
    document = load(raced)
    kept = document["rows"].pop(0)
    document["summary"] = models.summary(document["rows"])
    write(tmp_path / models.FILE, document)
    assert race(tmp_path, "--models", MODELS[0], "--resume", source=SampleSource()) == 0
    rows = rows_of(tmp_path / models.FILE)
    assert rows[:3] == document["rows"]
    assert models.key_of(rows[3]) == models.key_of(kept)
    assert race(tmp_path, "--models", *MODELS, "--resume", "--limit", "0", source=SampleSource()) == 1
    assert rows_of(tmp_path / models.FILE) == rows
    (tmp_path / models.FILE).write_text("{}")
    with pytest.raises(InvalidRequest, match="is not a results file"):
        race(tmp_path, "--resume")


def test_linears_without_a_kernel_are_pytorchs(tmp_path: Path) -> None:
    source = SampleSource(fails=True)
    assert race(tmp_path, "--models", MODELS[1], "--tokens", "2", "--variants", "tirgemm", source=source) == 0
    assert Gemm.parse("2x96x32:f32:nt:bias") in source.asked
    (row,) = rows_of(tmp_path / models.FILE)
    assert (row["difference"], row["kernels"]) == (0, {})


def test_kernels_are_raced_in_the_model_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tirgemm.torch import acceleration

    rows: list[tuple[int, list[int]]] = []

    def dropped(calls: Any, linears: Any, _table: Any, turns: Any, *, graph: bool) -> dict[Any, float]:
        rows.append((len(linears), [call.run().shape[1] for call in calls]))
        assert turns.seconds > 0
        assert not graph, "a CPU has no graphs"
        kernels = (each for call in calls for each in call.kernels)
        return {each: 1.5 for each in kernels if each.kernel.gemm.n == 32 and each.rows.high == 3}

    monkeypatch.setattr(acceleration, "dropped", dropped)
    options = ["--models", MODELS[0], "--variants", "tirgemm", "--in-model"]
    assert race(tmp_path, *options, source=SampleSource()) == 0
    # Layers and head are accelerated apart; this model has no head.
    assert rows == [(2, [1, 3]), (0, [1, 3])]
    assert [row["kernels"] for row in rows_of(tmp_path / models.FILE)] == [{"default": 2}, {"default": 1}]
    assert load(tmp_path / models.FILE)["environment"]["kernels"] == models.IN_MODEL


class RebuiltKernels:
    """In place of kernels that are rebuilt for dependent launches: those of another source, as they are."""

    tunes = False

    def __init__(self, inner: Any, data_dir: Path | None = None) -> None:
        del data_dir
        self.lookup, self.refusal = inner.lookup, inner.refusal

    def prepare(self, gemms: Sequence[Gemm], device: Any, policy: Any, arrived: Any) -> Preparation:
        del policy

        def make() -> None:
            for gemm in gemms:
                arrived(self.lookup(gemm, device))

        return run_in_background(Preparation(tuple(gemms)), make, str)


def test_rebuilt_kernels_have_a_column_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tirgemm
    from benchmarks.models import race as program
    from tirgemm.torch import conversion
    from tirgemm.torch.kernel_table import DEPENDENT_TABLE

    for module in (program, conversion):
        monkeypatch.setattr(module, "dependent_launch_refusal", lambda _device: "")
    monkeypatch.setattr(tirgemm, "DependentKernels", RebuiltKernels, raising=False)
    served: list[Any] = []
    add = DEPENDENT_TABLE.add
    monkeypatch.setattr(DEPENDENT_TABLE, "add", observed(add, served.append))
    source = SampleSource()
    assert race(tmp_path, "--models", MODELS[0], "--variants", "tirgemm_pdl", source=source) == 0
    rows = rows_of(tmp_path / models.FILE)
    assert [(row["tokens"], row["variant"], row["kernels"]) for row in rows] == [
        (tokens, "tirgemm_pdl", {"default": 2}) for tokens in (1, 3)
    ]
    assert all(0 < row["difference"] < 1e-5 for row in rows), "not PyTorch's own kernels"
    assert {kernel.gemm for kernel in served} == {kernel.gemm for kernel in source.made}
    assert all(DEPENDENT_TABLE.find(kernel.gemm, kernel.device) is None for kernel in served)


def test_what_is_wrong_with_a_file_is_said(raced: Path, tmp_path: Path) -> None:
    document = load(raced)
    rows = document["rows"]
    rows[0]["error"] = 3 * rows[0]["pytorch_error"]
    rows[1]["samples_ms"].pop()
    rows[2]["samples_ms"][0] = 0
    rows[2]["pytorch_difference"] = float("nan")
    rows.append(rows[3])
    write(tmp_path / models.FILE, document)
    wrong = check.faults(tmp_path / models.FILE, history=History(Path("/")))
    for part in (
        "its error is",
        "has 2 samples of ours",
        "not above 0",
        "is there twice",
        "its summary is not",
        "its pytorch_difference is nan",
    ):
        assert sum(part in sentence for sentence in wrong) == 1, part


def test_the_table_has_medians_and_speedups(raced: Path, tmp_path: Path) -> None:
    document = load(raced)
    for row in document["rows"]:
        row["samples_ms"], row["pytorch_samples_ms"] = [2.0, 2.0, 2.0], [1.0, 3.0, 9.0]
    write(tmp_path / models.FILE, document)
    table = models.models(tmp_path, tmp_path)
    assert "| model | dtype | tokens | PyTorch, eager, ms | tirgemm, eager | tirgemm_set, eager |" in table
    assert f"| {MODELS[0]} | f32 | 3 | 3.000 | 1.500 | 1.500 |" in table
    assert "| geomean (least) |  |  |  | 1.500 (1.500) | 1.500 (1.500) |" in table
    assert table.endswith("Slower than PyTorch beyond the spread of the samples (95 %): none.")
    document["rows"][1]["samples_ms"], document["rows"][1]["pytorch_samples_ms"] = [2.0, 3.0, 4.0], [1.8, 2.9, 3.9]
    write(tmp_path / models.FILE, document)
    assert models.models(tmp_path, tmp_path).endswith(f"(95 %): tirgemm, eager, {MODELS[0]}, 3 tokens (0.967).")
    assert models.models(tmp_path / "none", tmp_path).startswith("Not measured yet: `python benchmarks/models/race.py")


def test_the_table_says_how_near_results_lie_where_rows_have_it(raced: Path, tmp_path: Path) -> None:
    document = load(raced)
    rows = document["rows"]
    for row, difference in zip(rows, (1e-6, 2e-6, 3e-6, 5e-6), strict=True):
        row["difference"], row["pytorch_difference"] = difference, 2e-6
    del rows[2]["pytorch_difference"]
    write(tmp_path / models.FILE, document)
    assert check.faults(tmp_path / models.FILE, history=History(Path("/"))) == []
    said = "of 3 rows our result differs from PyTorch's no more than two of PyTorch's own ways differ from each other"
    assert f"\n\nIn 2 {said}; at most 2.50 times as much.\n\nSlower" in models.models(tmp_path, tmp_path)
    rows[0]["pytorch_difference"] = 0
    assert models.nearness(rows) == f"In 1 {said}; at most 2.50 times as much; in 1 these have the same bits."
    for row in rows:
        row.pop("pytorch_difference", None)
    write(tmp_path / models.FILE, document)
    assert check.faults(tmp_path / models.FILE, history=History(Path("/"))) == []
    assert "differs from PyTorch" not in models.models(tmp_path, tmp_path)


def test_the_agreement_of_pytorch_is_that_of_all_its_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.models import agreement

    monkeypatch.setattr(agreement, "CPU_WAYS", ("default", "default", "without oneDNN"))
    outputs = iter(torch.tensor([[100.0, 0.0], [101.0, 0.0], [98.0, 0.0]]))
    error, apart = agreement.agreement_of_pytorch(lambda: next(outputs), torch.tensor([100.0, 0.0]), "cpu")
    assert error == pytest.approx(0.02)
    assert apart == pytest.approx(3 / 98)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--tokens", "0"], "they must be from 1 to 2048"),
        (["--modes", "graph"], "mode graph needs a GPU"),
        (["--in-model", "--all-kernels"], "give one of them"),
        (
            ["--variants", "tirgemm_pdl"],
            "variant tirgemm_pdl: programmatic dependent launch needs a GPU of sm_90 or newer; cpu is a CPU",
        ),
        (["--device", "sm_90a"], "is only named"),
    ],
)
def test_what_cannot_be_raced_is_refused(more: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=says):
        race(tmp_path, *more)


def test_hugging_faces_models_race(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers, which no extra brings, is not installed")
    from benchmarks.models.hugging_face import hugging_face_decoder

    source = SampleSource(fails=False)
    options = ["--models", "llama-tiny", MODELS[0], "--tokens", "2", "--variants", "tirgemm"]
    assert race(tmp_path, *options, source=source, make=hugging_face_decoder) == 0
    # q and o, k and v, gate and up, down, the head of one token; q and o, k and v of attention are the same.
    assert sorted(map(str, source.asked)) == [
        *("1x40x32:f32:nt", "2x16x32:f32:nt", "2x32x32:f32:nt", "2x32x48:f32:nt", "2x48x32:f32:nt"),
    ]
    rows = rows_of(tmp_path / models.FILE)
    assert [row["kernels"] for row in rows] == [{"default": 5}, {"default": 2}]
    assert all(0 < row["difference"] < 1e-5 for row in rows), "not PyTorch's own kernels"
    assert load(tmp_path / models.FILE)["environment"]["transformers"] == results.version_of("transformers")


@pytest.mark.parametrize("installed", [None, "4.52.4"])
def test_without_transformers_the_race_says_what_it_needs(
    installed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.models.hugging_face import hugging_face_decoder

    monkeypatch.setattr(results, "version_of", lambda _: installed)
    with pytest.raises(
        InvalidRequest, match=r"transformers 4\.53 or newer, and (none|4\.52\.4) is installed: pip install"
    ):
        race(tmp_path, make=hugging_face_decoder)
