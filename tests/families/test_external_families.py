"""Families of other packages: how they are found, what a broken one costs, and that build processes know them."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.helpers.fake_workbench import FakeBench
from tests.newcomer.pages import blocks
from tirgemm import Budget, Config, Gemm, families
from tirgemm.detect import device as detect
from tirgemm.errors import BuildFailed, InvalidRequest, Unsupported
from tirgemm.families import FAMILIES, FamilyWarning, Registration
from tirgemm.families.external import Registry
from tirgemm.service.http.routes import info
from tirgemm.service.settings import Settings
from tirgemm.tuning.build.compile import build
from tirgemm.tuning.build.pool import BuildPool
from tirgemm.tuning.tune import Tuning

GEMM = Gemm.parse("64x64x64:f32:nn")
DEVICE = detect("cpu")
CONFIG = Config("tiled", (("tile_m", 4), ("tile_n", 8), ("unroll", 1)))
ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding-a-family.md"
SOURCE = next(block.body for block in blocks(PAGE, ROOT) if block.title == "tiled.py")

# place(entry point's name, its value, distribution, version, source of its module or None)
Place = Callable[..., Path]


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of the test's own, which nothing has asked yet."""
    fresh = Registry(frozenset(FAMILIES))
    monkeypatch.setattr(families, "_registry", fresh)
    return fresh


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Installs a distribution with one family into a folder on this process's and its children's paths."""

    def install(
        name: str = "tiled",
        value: str = "",
        dist: str = "tiled-gemm",
        version: str = "0.1",
        source: str | None = SOURCE,
    ) -> Path:
        module = f"family_{tmp_path.name}_{dist}".replace("-", "_")
        folder = tmp_path / dist
        about = folder / f"{dist.replace('-', '_')}-{version}.dist-info"
        about.mkdir(parents=True)
        if source is not None:
            (folder / f"{module}.py").write_text(source)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n")
        (about / "entry_points.txt").write_text(f"[tirgemm.families]\n{name} = {value or f'{module}:Tiled'}\n")
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("PYTHONPATH", ":".join([*map(str, tmp_path.iterdir())]))
        monkeypatch.delitem(sys.modules, module, raising=False)
        importlib.invalidate_caches()
        return folder

    return install


# -- found -----------------------------------------------------------------------------------------


def test_a_family_of_another_package_is_found_by_its_entry_point(place: Place) -> None:
    place()
    assert list(families.families()) == [*FAMILIES, "tiled"]
    assert families.family_named("tiled").name == "tiled"
    assert families.origin("tiled") == "tiled-gemm 0.1"
    assert families.origin("x86") is None
    assert [f.name for f in families.supporting(GEMM, DEVICE)] == ["x86", "tiled"]
    assert [f.name for f in families.supporting(Gemm.parse("63x64x64:f32:nn"), DEVICE)] == ["x86"]


def test_an_unknown_family_is_refused_with_all_that_are_known(place: Place) -> None:
    place()
    with pytest.raises(InvalidRequest, match=r"'tilde' is unknown; families are x86, simt, mma, wmma, wgmma, tiled$"):
        families.family_named("tilde")


def test_the_service_lists_it(place: Place) -> None:
    class Queue:
        def live_workers(self, _seconds: float) -> list[Any]:
            return []

    class State:
        settings, queue, public_key = Settings(), Queue(), "ed25519:AAAA"

    place()
    # What the route asks of its state.
    answer = info.meta(cast("Any", State()))
    assert answer.families == [*FAMILIES, "tiled"]


def test_it_is_searched_beside_the_others_and_alone_where_it_is_asked_for(place: Place) -> None:
    place()
    bench = FakeBench()
    assert [f.name for f in Tuning(GEMM, bench).families] == ["x86", "tiled"]
    record = Tuning(GEMM, bench, budget=Budget(6, 60.0), families=["tiled"]).run()
    assert record.config.family == "tiled"
    assert {config.family for config in bench.built} == {"tiled"}


def test_records_of_other_families_take_nothing_of_its_budget(place: Place) -> None:
    place()
    bench = FakeBench()
    assert Tuning(GEMM, bench, budget=Budget(8, 60.0), families=["x86"]).run().config.family == "x86"
    bench.built.clear()
    record = Tuning(GEMM, bench, budget=Budget(8, 60.0), families=["tiled"]).run()
    assert record.config.family == "tiled"
    assert record.trials == 8
    assert len({config for config in bench.built if config.family == "tiled"}) == 8
    tiled = families.family_named("tiled")
    assert record.timings.default == str(tiled.default(GEMM, bench.device, "sustained"))


# -- broken ----------------------------------------------------------------------------------------

NAMELESS = "class Tiled:\n    name = 'tiled'\n    rules = ()\n    def supports(self, gemm, device): return None\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"source": "import not_installed"}, "ModuleNotFoundError: No module named 'not_installed'"),
        ({"value": "os:no_such"}, "AttributeError: "),
        ({"source": "raise RuntimeError('at import')"}, "RuntimeError: at import"),
        ({"source": NAMELESS}, "Tiled lacks space, default, predict_us, instantiate of the contract"),
        ({"value": "os:path"}, "lacks supports, space, default, predict_us, instantiate, rules of the contract"),
        ({"name": "other"}, "its name is 'tiled', that of its entry point 'other'; they must be the same"),
        ({"source": SOURCE.replace('"tiled"', '"Tiled-1"')}, "its name is 'Tiled-1'; a name has lower-case letters"),
        ({"name": "x86"}, "x86 is a family of tirgemm itself; rename it"),
    ],
)
def test_a_broken_package_is_named_and_costs_only_itself(place: Place, options: dict[str, str], says: str) -> None:
    place(**options, dist="some-gemm", version="7")
    name = options.get("name", "tiled")
    with pytest.warns(FamilyWarning, match=f"^family '{name}' of some-gemm 7 is left out: ") as warned:
        actual = families.families()
    assert [says in str(w.message) for w in warned] == [True]
    assert actual == FAMILIES
    assert [f.name for f in families.supporting(GEMM, DEVICE)] == ["x86"]
    if name != "x86":
        with pytest.raises(InvalidRequest, match=f"family '{name}' of some-gemm 7 is left out: "):
            families.family_named(name)


def test_two_packages_with_one_name_are_both_left_out(place: Place) -> None:
    place(dist="some-gemm", version="1")
    place(dist="other-gemm", version="2")
    with pytest.warns(FamilyWarning, match="2 distributions have a family of this name") as warned:
        assert families.families() == FAMILIES
    assert all(name in str(warned[0].message) for name in ("some-gemm 1", "other-gemm 2"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("if device.kind", "1 / 0\n        if device.kind", "ZeroDivisionError"),
        ('("tile_m", 4)', '("tile_m", 5)', "InvalidConfig: tiled knob tile_m is 5"),
        ("sums > 512", "sums > 1", "InvalidConfig: .*rule registers"),
    ],
)
def test_a_family_that_fails_when_it_is_asked_is_left_out_of_that_problem(
    place: Place, old: str, new: str, says: str
) -> None:
    assert old in SOURCE
    place(source=SOURCE.replace(old, new))
    with pytest.warns(FamilyWarning, match=f"^family 'tiled' of tiled-gemm 0.1 fails: {says}") as warned:
        actual = [families.supporting(GEMM, DEVICE) for _ in range(2)]
    assert [[f.name for f in some] for some in actual] == [["x86"], ["x86"]]
    assert len(warned) == 1, "said once"
    with pytest.raises(InvalidRequest, match=r"family tiled does not write .* of tiled-gemm 0\.1 fails"):
        Tuning(GEMM, FakeBench(), families=["tiled"])


def test_what_no_family_writes_has_the_external_ones_reason_too(place: Place) -> None:
    place()
    with pytest.raises(Unsupported, match=r"x86: .*; tiled: tiled is for CPUs and sums in f32, not for cpu and f16$"):
        families.supporting(Gemm.parse("64x64x64:f16:nn:acc=f16"), DEVICE)


# -- registered ------------------------------------------------------------------------------------


def test_a_registered_family_is_known_until_the_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registered_one.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    made = families.register("registered_one:Tiled")
    assert families.family_named("tiled") is made
    assert families.register("registered_one:Tiled") is made, "again is no clash"
    assert families.registered() == (Registration("registered_one:Tiled", str(tmp_path)),)
    (tmp_path / "registered_two.py").write_text(SOURCE)
    with pytest.raises(InvalidRequest, match="'registered_two:Tiled' cannot be registered: there is a family tiled"):
        families.register("registered_two:Tiled")


def test_registering_what_an_entry_point_names_changes_nothing(place: Place) -> None:
    folder = place()
    (module,) = (path.stem for path in folder.glob("*.py"))
    assert families.register(f"{module}:Tiled") is families.family_named("tiled")
    assert families.registered() == ()
    assert families.origin("tiled") == "tiled-gemm 0.1"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("os.path", 'it is named "module:attribute"'),
        ("__main__:Tiled", "build processes cannot import __main__; put the family into a module of its own"),
        ("no_such_module:X", "ModuleNotFoundError"),
        ("os:path", "lacks supports"),
        ("tirgemm.families.x86:X86", "x86 is a family of tirgemm itself; rename it"),
    ],
)
def test_what_cannot_be_registered_is_refused(target: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"family '{target}' cannot be registered: .*{says}"):
        families.register(target)
    assert families.registered() == ()


# -- built -----------------------------------------------------------------------------------------


def test_build_processes_find_entry_points_and_are_told_what_is_registered(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place()
    plain = tmp_path / "plain"
    plain.mkdir()
    renamed = SOURCE.replace('"tiled"', '"tiles"').replace("class Tiled", "class Tiles")
    (plain / "registered_late.py").write_text(renamed)
    with BuildPool(DEVICE, 1, lock_dir=tmp_path / "locks") as pool:
        actual = pool.submit(GEMM, CONFIG).result(240)
        assert actual.flags[-1] == "family=tiled (tiled-gemm 0.1)"
        monkeypatch.setattr(sys, "path", [str(plain), *sys.path])  # which the running process does not have
        families.register("registered_late:Tiles")
        late = pool.submit(GEMM, Config("tiles", CONFIG.knobs)).result(240)
        assert late.flags[-1] == "family=tiles (registered as registered_late:Tiles)"
        assert late.data == actual.data
        with pytest.raises(BuildFailed, match=r"'unknown' is unknown; families are .*tiled, tiles"):
            pool.submit(GEMM, Config("unknown", ())).result(240)


def test_another_version_of_a_package_makes_another_kernel(
    place: Place, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place(version="0.1")
    first = build(GEMM, CONFIG, DEVICE)
    about = folder / "tiled_gemm-0.1.dist-info" / "METADATA"
    about.write_text(about.read_text().replace("Version: 0.1", "Version: 0.2"))
    monkeypatch.setattr(families, "_registry", Registry(registry.builtin))
    second = build(GEMM, CONFIG, DEVICE)
    assert (first.flags[-1], second.flags[-1]) == ("family=tiled (tiled-gemm 0.1)", "family=tiled (tiled-gemm 0.2)")
    assert first.data == second.data
    assert first.source_sha256 == second.source_sha256, "the generated source is the same"


def test_families_of_tirgemm_say_nothing_of_packages() -> None:
    built = build(GEMM, FAMILIES["x86"].default(GEMM, DEVICE, "sustained"), DEVICE)
    assert not [flag for flag in built.flags if flag.startswith("family=")]


def test_threads_that_ask_at_once_load_a_package_once(place: Place) -> None:
    counted = "import time\ntime.sleep(0.2)\nCOUNT = []\n" + SOURCE.replace(
        'name = "tiled"', 'name = "tiled"\n\n    def __init__(self) -> None:\n        COUNT.append(1)'
    )
    place(source=counted)
    answers: list[list[str]] = []
    threads = [threading.Thread(target=lambda: answers.append(list(families.families()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [[*FAMILIES, "tiled"]] * 4
    module = sys.modules[type(families.family_named("tiled")).__module__]
    assert len(module.COUNT) == 1
