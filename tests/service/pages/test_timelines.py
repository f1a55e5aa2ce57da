"""The page of a kernel's timeline: a recording from the service's folder, or how to record one."""

from __future__ import annotations

import gzip
import json
import os
import re
from html import unescape

import pytest

from tests.service.pages.browser import Browser
from tests.service.pages.page_records import A100, H200, searched_kernel
from tests.service.pages.timeline_records import CONFIG, EMULATOR, RECORDED, put_recording, recorded_kernel
from tests.service.support import Service
from tirgemm.analysis.timeline.perfetto import perfetto
from tirgemm.analysis.timeline.recording import Recording
from tirgemm.config import Config
from tirgemm.service.explain.kernel_timeline import shipped_files


def test_without_a_recording_it_says_how_to_make_one_and_shows_what_it_would_be(
    service: Service, browser: Browser
) -> None:
    kernel_id = recorded_kernel(service)
    document = service.http.get(f"/kernels/{kernel_id}/timeline").json()
    assert document["recording"] is None
    assert document["command"] == f"tirgemm explain --kernel {kernel_id} --timeline {kernel_id}.json.gz"
    assert document["place"] == f"timelines/{kernel_id}.json.gz"
    assert document["reason"] == "it was not recorded yet"
    # Of the three that come with the package the nearest to 256x128x512.
    assert (document["illustration"]["gemm"], document["illustration"]["device"]) == (
        "128x4096x7168:f16:nt",
        "NVIDIA H200",
    )
    page = unescape(browser.open(f"/kernels/{kernel_id}/timeline").text)
    assert document["command"] in page
    assert "It is not this kernel's: it was recorded of 128x4096x7168:f16:nt, wgmma, on NVIDIA H200" in page
    assert service.http.get(f"/kernels/{kernel_id}/timeline/trace").status_code == 404


@pytest.mark.parametrize("ending", [".json.gz", ".json"])
def test_a_recording_is_drawn_with_its_clock_and_its_device(service: Service, browser: Browser, ending: str) -> None:
    kernel_id = recorded_kernel(service)
    put_recording(service, kernel_id, RECORDED, ending)
    document = service.http.get(f"/kernels/{kernel_id}/timeline").json()
    recording = document["recording"]
    assert (recording["source"], recording["device"], recording["driver"]) == ("device", "NVIDIA H200", "580.65")
    assert (recording["cycles_per_us"], recording["timer_step_ns"], recording["unit"]) == (1755.5, 32, "us")
    assert recording["kinds"] == RECORDED.kinds
    assert (document["illustration"], document["reason"]) == (None, None)
    page = unescape(browser.open(f"/kernels/{kernel_id}/timeline").text)
    assert f"Timeline of {EMULATOR.gemm}, wgmma on NVIDIA H200" in page
    assert "1,756 cycles a us" in page
    kinds = {span.kind for track in RECORDED.tracks for span in track.spans}
    assert {"wait", "load", "multiply", "store"} < kinds
    assert all(RECORDED.kinds[kind] in page for kind in kinds)
    assert "nothing was measured" not in page
    assert not re.search(r"<script|<style|\sstyle=|\son\w+=", page)


def test_the_trace_is_a_file_to_download(service: Service) -> None:
    kernel_id = recorded_kernel(service)
    put_recording(service, kernel_id, RECORDED)
    address = service.http.get(f"/kernels/{kernel_id}/timeline").json()["trace"]
    answer = service.http.get(address)
    assert answer.headers["content-disposition"] == f'attachment; filename="{kernel_id}.trace.json"'
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(json.dumps(perfetto(RECORDED)))


def test_what_an_emulator_recorded_is_called_so(service: Service, browser: Browser) -> None:
    kernel_id = recorded_kernel(service)
    put_recording(service, kernel_id, EMULATOR)
    page = browser.open(f"/kernels/{kernel_id}/timeline").text
    assert 'role="alert">Recorded by the emulator' in page
    assert "The timeline of another kernel" not in page


def test_a_recording_of_another_config_is_refused(service: Service, browser: Browser) -> None:
    kernel_id = recorded_kernel(service, CONFIG.with_(stages=3))
    put_recording(service, kernel_id, RECORDED)
    assert "another config or problem" in browser.open(f"/kernels/{kernel_id}/timeline").text
    trace = service.http.get(f"/kernels/{kernel_id}/timeline/trace")
    assert (trace.status_code, trace.json()["code"]) == (422, "invalid_request")


def test_a_file_that_is_none_is_told_and_one_put_in_its_place_is_shown(service: Service, browser: Browser) -> None:
    kernel_id = recorded_kernel(service)
    path = put_recording(service, kernel_id, RECORDED)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    os.utime(path, ns=(1, 1))
    assert "There is no timeline of this kernel" in browser.open(f"/kernels/{kernel_id}/timeline").text
    path.write_bytes(whole)
    os.utime(path, ns=(2, 2))
    assert service.http.get(f"/kernels/{kernel_id}/timeline").json()["recording"]["source"] == "device"
    put_recording(service, kernel_id, EMULATOR)
    os.utime(path, ns=(3, 3))
    assert service.http.get(f"/kernels/{kernel_id}/timeline").json()["recording"]["source"] == "emulator"


@pytest.mark.parametrize(
    "damaged",
    [gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20, b"[" * 100_000, b'{"suite": "gemm"}'],
    ids=["gzip", "nested", "another"],
)
def test_a_damaged_file_is_told_by_its_name_alone(service: Service, damaged: bytes) -> None:
    kernel_id = recorded_kernel(service)
    path = put_recording(service, kernel_id, RECORDED, ".json.gz" if damaged[:1] == b"\x1f" else ".json")
    path.write_bytes(damaged)
    page, trace = (service.http.get(f"/kernels/{kernel_id}/timeline{part}") for part in ("", "/trace"))
    assert (page.status_code, trace.status_code) == (200, 422)
    for told in (page.json()["reason"], trace.json()["detail"]):
        assert path.name in told
        assert str(path.parent) not in told


def test_a_family_without_time_stamps_says_so(service: Service, browser: Browser) -> None:
    kernel_id = recorded_kernel(service, Config("simt", (("block_m", 8),)))
    page = unescape(browser.open(f"/kernels/{kernel_id}/timeline").text)
    assert "kernels of family simt have no time stamps; families that have them: wgmma" in page
    assert "tirgemm explain" not in page
    assert "The timeline of another kernel" not in page


@pytest.mark.parametrize(
    "path", ["/kernels/0123/timeline", "/kernels/..%2f..%2fkey/timeline", "/kernels/0123/timeline/trace"]
)
def test_a_kernel_that_is_not_there_has_no_timeline(service: Service, path: str) -> None:
    assert service.http.get(path).status_code == 404


def test_a_recording_of_the_package_is_the_kernels_own_on_its_model_of_device(
    service: Service, browser: Browser
) -> None:
    path = next(path for path in shipped_files() if path.name.startswith("square"))
    square = Recording.read(path)
    config = Config("wgmma", tuple(square.config.items()))
    own = searched_kernel(service.store, square.gemm, device=H200, config=config).id
    elsewhere = searched_kernel(service.store, square.gemm, device=A100, config=config).id
    document = service.http.get(f"/kernels/{own}/timeline").json()
    assert (document["recording"]["gemm"], document["recording"]["device"]) == (square.gemm, "NVIDIA H200")
    assert len(service.http.get(document["trace"]).json()["traceEvents"]) > 9396
    page = browser.open(f"/kernels/{own}/timeline").text
    assert "of the time that consumers wait for data" in page
    assert len(page) < 120_000
    assert service.http.get(f"/kernels/{elsewhere}/timeline").json()["recording"] is None
