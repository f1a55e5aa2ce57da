"""Contract tests of every Store; each implementation's test class inherits all of it."""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.contract.storage.databases import (
    DEVICE,
    GEMM,
    OTHER_DEVICE,
    OTHER_GEMM,
    candidate,
    config,
    kernel,
    key,
    samples,
)
from tirgemm.device import Device
from tirgemm.errors import StoreError, VerificationFailed
from tirgemm.gemm import Gemm, Range
from tirgemm.timings import ConfigOrigin, SearchSummary, Timings
from tirgemm.tuning.records import KernelRecord, SampleSet, Status
from tirgemm.tuning.records.row_signatures import RowsDiffer
from tirgemm.tuning.records.store import Store


def signed_set(gemm: Gemm, signatures: Sequence[str], **changes: Any) -> KernelRecord:
    """The kernel of a set whose members have these row signatures."""
    given = kernel(gemm=gemm, **changes)
    assert given.certificate is not None
    tests = [test for each in signatures for test in ({"name": "exact"}, {"name": "invariant", "signature": each})]
    return replace(given, certificate=replace(given.certificate, tests=tuple(tests)))


class StoreContract:
    """Inherit and give the fixture ``store``: a new, empty Store."""

    # -- candidates ----------------------------------------------------------------------------

    def test_a_candidate_comes_back_as_it_was(self, store: Store) -> None:
        given = candidate(3)
        store.add_candidate(given)
        assert store.candidate(given.key) == given
        assert store.candidates(GEMM, DEVICE.key, "sustained") == [given]

    def test_every_status_and_every_field_survives(self, store: Store) -> None:
        for number, status in enumerate(Status):
            given = candidate(
                number,
                status=status,
                message=f"line 1\nénd {number}",
                rule="too_many_registers",
                error=None,
                trace=None,
                attempt=number + 1,
                predicted_us=None,
                sample_sets=(),
            )
            store.add_candidate(given)
            assert store.candidate(given.key) == given

    def test_knobs_keep_their_order(self, store: Store) -> None:
        store.add_candidate(candidate(1))
        stored = store.candidate(key(1))
        assert stored is not None
        assert [name for name, _ in stored.config.knobs] == ["tile_n", "pack", "order"]

    def test_no_candidate_is_found_under_another_key(self, store: Store) -> None:
        store.add_candidate(candidate(1))
        assert store.candidate(key(2)) is None
        assert store.candidate(replace(key(1), regime="isolated")) is None
        assert store.candidate(replace(key(1), device_key=OTHER_DEVICE.key)) is None
        assert store.candidate(replace(key(1), gemm=GEMM.with_(m=18))) is None
        assert store.candidates(OTHER_GEMM, DEVICE.key, "sustained") == []

    def test_candidates_come_oldest_first_and_replacing_one_keeps_its_place(self, store: Store) -> None:
        for number in (5, 2, 9):
            store.add_candidate(candidate(number))
        store.add_candidate(candidate(5, status=Status.WRONG))
        candidates = store.candidates(GEMM, DEVICE.key, "sustained")
        assert [c.config for c in candidates] == [config(5), config(2), config(9)]

    def test_recording_again_replaces_all_but_the_sample_sets(self, store: Store) -> None:
        store.add_candidate(candidate(1))
        store.add_candidate(candidate(1, status=Status.CRASHED, message="signal 11", trace=None, sample_sets=()))
        stored = store.candidate(key(1))
        assert stored is not None
        assert (stored.status, stored.message, stored.trace) == (Status.CRASHED, "signal 11", None)
        assert stored.sample_sets == (samples(11.0),)

    def test_recording_what_was_read_doubles_no_sample_set(self, store: Store) -> None:
        store.add_candidate(candidate(1))
        store.add_samples(key(1), samples(9.0, "selection"))
        stored = store.candidate(key(1))
        assert stored is not None
        store.add_candidate(stored.with_(message="read and written", sample_sets=(*stored.sample_sets, samples(8.0))))
        again = store.candidate(key(1))
        assert again is not None
        assert again.sample_sets == (samples(11.0), samples(9.0, "selection"), samples(8.0))

    def test_samples_are_appended_in_order_even_if_equal(self, store: Store) -> None:
        store.add_candidate(candidate(1, sample_sets=()))
        for taken in (samples(3.0), samples(2.0, "noise"), samples(3.0)):
            store.add_samples(key(1), taken)
        stored = store.candidate(key(1))
        assert stored is not None
        assert stored.sample_sets == (samples(3.0), samples(2.0, "noise"), samples(3.0))

    def test_samples_of_an_unrecorded_candidate_are_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match=r"17x33x65.*record it before"):
            store.add_samples(key(1), samples())

    @pytest.mark.parametrize("bad", [(), (1.0, math.nan), (math.inf,)])
    def test_samples_that_are_no_times_are_refused_and_nothing_is_written(
        self, store: Store, bad: tuple[float, ...]
    ) -> None:
        store.add_candidate(candidate(1))
        with pytest.raises(StoreError, match="finite"):
            store.add_samples(key(1), SampleSet(bad))
        with pytest.raises(StoreError, match="finite"):
            store.add_candidate(candidate(2, sample_sets=(SampleSet(bad),)))
        assert store.candidates(GEMM, DEVICE.key, "sustained") == [candidate(1)]

    def test_an_error_that_is_not_a_number_is_infinite(self, store: Store) -> None:
        store.add_candidate(candidate(1, status=Status.WRONG, error=math.nan))
        stored = store.candidate(key(1))
        assert stored is not None
        assert stored.error == math.inf

    def test_what_compilers_print_is_stored(self, store: Store) -> None:
        store.add_candidate(candidate(1, message="bad \0 byte \udcff, 'quoted' \"twice\" \\ 🔥", rule="r\0"))
        stored = store.candidate(key(1))
        assert stored is not None
        assert stored.message == "bad � byte ?, 'quoted' \"twice\" \\ 🔥"

    def test_conditions_come_back_as_json(self, store: Store) -> None:
        taken = SampleSet((1.0,), conditions={"clocks": (1, 2), "power_w": math.nan, "nested": {"b": 1, "a": None}})
        store.add_candidate(candidate(1, sample_sets=(taken,)))
        stored = store.candidate(key(1))
        assert stored is not None
        assert stored.sample_sets[0].conditions == {"clocks": [1, 2], "power_w": None, "nested": {"b": 1, "a": None}}

    def test_what_is_no_json_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match="set"):
            store.add_candidate(candidate(1, trace={1, 2}))
        assert store.candidate(key(1)) is None

    def test_samples_keep_every_bit(self, store: Store) -> None:
        odd = (0.1 + 0.2, 1e-300, math.nextafter(3.0, 4.0), 123456789.123456789)
        store.add_candidate(candidate(1, sample_sets=(SampleSet(odd),), error=1 / 3))
        stored = store.candidate(key(1))
        assert stored is not None
        assert (stored.sample_sets[0].samples_us, stored.error) == (odd, 1 / 3)

    def test_largest_problems_are_keys(self, store: Store) -> None:
        big = Gemm(Range(1, 2**31 - 1), 2, 7, out="f32", alpha=True, act="gelu_tanh", deterministic=True, align=256)
        store.add_candidate(candidate(1, gemm=big))
        assert [c.gemm for c in store.candidates(big, DEVICE.key, "sustained")] == [big]

    def test_history_is_what_was_measured_on_the_device_newest_first(self, store: Store) -> None:
        store.add_candidate(candidate(1))
        store.add_candidate(candidate(2, gemm=OTHER_GEMM))
        store.add_candidate(candidate(3, status=Status.PRUNED, sample_sets=()))
        store.add_candidate(candidate(4, device_key=OTHER_DEVICE.key))
        store.add_candidate(candidate(5, regime="isolated"))
        store.add_candidate(candidate(6))
        history = store.history(DEVICE.key, "sustained")
        assert [c.config for c in history] == [config(6), config(2), config(1)]
        assert history[1] == candidate(2, gemm=OTHER_GEMM)
        assert store.history(DEVICE.key, "sustained", limit=2) == history[:2]
        assert store.history(DEVICE.key, "sustained", limit=0) == []

    # -- attempts ------------------------------------------------------------------------------

    def test_attempts_are_counted_for_each_candidate_before_it_is_recorded(self, store: Store) -> None:
        assert [store.begin_attempt(key(1)) for _ in range(3)] == [1, 2, 3]
        assert store.begin_attempt(key(2)) == 1
        assert store.begin_attempt(replace(key(1), regime="isolated")) == 1
        assert store.candidate(key(1)) is None
        store.add_candidate(candidate(1, attempt=3))
        assert store.begin_attempt(key(1)) == 4

    def test_a_withdrawn_attempt_does_not_count_unless_it_was_recorded(self, store: Store) -> None:
        store.begin_attempt(key(1))
        store.withdraw_attempt(key(1), store.begin_attempt(key(1)))
        assert store.begin_attempt(key(1)) == 2, "only the last one was withdrawn"
        store.add_candidate(candidate(1, attempt=2))
        store.withdraw_attempt(key(1), 2)
        assert store.begin_attempt(key(1)) == 3
        store.withdraw_attempt(key(2), 1)
        assert store.begin_attempt(key(2)) == 1

    def test_attempts_of_several_threads_have_different_numbers(self, store: Store) -> None:
        numbers: list[int] = []

        def begin() -> None:
            for _ in range(5):
                numbers.append(store.begin_attempt(key(1)))

        threads = [threading.Thread(target=begin) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(numbers) == list(range(1, 21))

    def test_threads_that_record_lose_nothing(self, store: Store) -> None:
        store.add_candidate(candidate(0, sample_sets=()))

        def record(first: int) -> None:
            for number in range(first, first + 5):
                store.add_candidate(candidate(number))
                store.add_samples(key(0), samples(float(number)))

        threads = [threading.Thread(target=record, args=(first,)) for first in (1, 11, 21, 31)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        candidates = store.candidates(GEMM, DEVICE.key, "sustained")
        assert len(candidates) == 21
        assert len(candidates[0].sample_sets) == 20

    def test_nothing_is_offered_for_a_problem_that_nobody_measured(self, store: Store) -> None:
        assert store.offer(GEMM, DEVICE, "sustained") is None

    def test_a_kernel_of_another_device_s_configs_is_the_answer_for_who_asks_for_it(self, store: Store) -> None:
        origin = ConfigOrigin("cuda:sm_90a:nvidia-h200:132", {}, False, other_device=True)
        own = store.put_kernel(kernel(trials=1))
        other = store.put_kernel(kernel(trials=2, timings=Timings(search=SearchSummary(shipped=origin))))
        assert other.other_device == origin.device
        assert store.kernel(GEMM, DEVICE.key, "sustained") == own
        assert store.kernel(GEMM, DEVICE.key, "sustained", other_devices=True) == other
        same = replace(origin, device=DEVICE.key, other_device=None)
        newest = store.put_kernel(kernel(trials=3, timings=Timings(search=SearchSummary(shipped=same))))
        assert store.kernel(GEMM, DEVICE.key, "sustained") == newest

    def test_history_is_complete_where_the_problem_that_it_is_for_is_named(self, store: Store) -> None:
        store.add_candidate(candidate(1))
        store.add_candidate(candidate(1, gemm=OTHER_GEMM))
        assert len(store.history(DEVICE.key, "sustained", near=GEMM)) == 2

    # -- kernels -------------------------------------------------------------------------------

    def test_a_kernel_comes_back_with_an_id_and_a_time(self, store: Store) -> None:
        given = kernel()
        stored = store.put_kernel(given)
        assert stored.id
        assert stored.created_at
        assert replace(stored, id="", created_at="") == given
        assert store.kernel_by_id(stored.id) == stored
        assert store.kernel(GEMM, DEVICE.key, "sustained") == stored

    def test_a_kernel_keeps_the_time_it_was_made_at(self, store: Store) -> None:
        assert store.put_kernel(kernel(created_at="2026-01-02T03:04:05Z")).created_at == "2026-01-02T03:04:05Z"

    def test_the_fallback_answers_until_there_is_a_tuned_kernel(self, store: Store) -> None:
        assert store.kernel(GEMM, DEVICE.key, "sustained") is None
        fallback = store.put_kernel(kernel("fallback"))
        assert store.kernel(GEMM, DEVICE.key, "sustained") == fallback
        tuned = store.put_kernel(kernel("tuned"))
        assert store.kernel(GEMM, DEVICE.key, "sustained") == tuned
        store.put_kernel(kernel("fallback"))
        assert store.kernel(GEMM, DEVICE.key, "sustained") == tuned

    def test_the_newest_tuned_kernel_answers_whatever_time_it_names(self, store: Store) -> None:
        store.put_kernel(kernel(created_at="2999-01-01T00:00:00Z"))
        newest = store.put_kernel(kernel(created_at="2020-01-01T00:00:00Z"))
        assert store.kernel(GEMM, DEVICE.key, "sustained") == newest

    def test_the_next_kernel_answers_where_others_are_passed_over(self, store: Store) -> None:
        fallback, old, new = (store.put_kernel(kernel(role)) for role in ("fallback", "tuned", "tuned"))
        gone: list[str] = []
        for answer in (new, old, fallback, None):
            assert store.kernel(GEMM, DEVICE.key, "sustained", without=gone) == answer
            gone += [] if answer is None else [answer.id]
        assert store.kernel(GEMM, DEVICE.key, "sustained") == new

    def test_an_unverified_kernel_never_answers(self, store: Store) -> None:
        stored = store.put_kernel(kernel("unverified", certificate=None))
        assert store.kernel(GEMM, DEVICE.key, "sustained") is None
        assert store.kernel_by_id(stored.id) == stored

    def test_an_invariant_kernel_with_other_rows_than_a_stored_one_is_refused(self, store: Store) -> None:
        def signed(gemm: Gemm, signature: str, device: Device = DEVICE) -> KernelRecord:
            given = kernel(gemm=gemm, device=device)
            assert given.certificate is not None
            tests = (*given.certificate.tests, {"name": "invariant", "signature": signature})
            return replace(given, certificate=replace(given.certificate, tests=tests))

        gemm = GEMM.with_(invariant=True)
        first = store.put_kernel(signed(gemm, "a" * 64))
        store.put_kernel(signed(gemm.with_(m=Range(1, 500), align=64), "a" * 64))
        for other in (gemm, gemm.with_(m=gemm.m_max + 1)):
            with pytest.raises(VerificationFailed, match=f"(?s)kernel .* of .*{'a' * 16}.*{'b' * 16}.*delete it"):
                store.put_kernel(signed(other, "b" * 64))
            assert store.kernel(other, DEVICE.key, "sustained") == (first if other == gemm else None)
        store.put_kernel(kernel(gemm=gemm.with_(m=3), certificate=None, role="unverified"))
        store.put_kernel(signed(gemm.with_(k=gemm.k + 1), "b" * 64))
        store.put_kernel(signed(GEMM, "b" * 64))
        store.put_kernel(signed(gemm, "b" * 64, replace(DEVICE, arch="another")))

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_all_members_of_an_invariant_set_are_compared_with_what_is_stored(self, store: Store, place: int) -> None:
        gemm, same, other = GEMM.with_(invariant=True), "a" * 64, "b" * 64
        signatures = [other if number == place else same for number in range(3)]
        with pytest.raises(RowsDiffer, match=f"(?s){same[:16]}.*") as alone:
            store.put_kernel(signed_set(gemm, signatures))
        assert alone.value.expected == same, "of most"
        store.put_kernel(signed_set(gemm.with_(m=3), [other]))
        with pytest.raises(RowsDiffer, match=r"kernel .* of 3x.* gives a row other bits") as beside:
            store.put_kernel(signed_set(gemm, signatures))
        assert beside.value.expected == other, "of what is stored"
        assert store.kernel(gemm, DEVICE.key, "sustained") is None
        kept = store.put_kernel(signed_set(gemm, [other] * 3))
        with pytest.raises(VerificationFailed):
            store.put_kernel(signed_set(gemm.with_(m=5), [same]))
        assert store.kernel(gemm, DEVICE.key, "sustained") == kept

    def test_kernels_answer_for_their_own_key_only(self, store: Store) -> None:
        store.put_kernel(kernel())
        assert store.kernel(GEMM, DEVICE.key, "isolated") is None
        assert store.kernel(GEMM, OTHER_DEVICE.key, "sustained") is None
        assert store.kernel(OTHER_GEMM, DEVICE.key, "sustained") is None

    def test_one_artifact_may_serve_in_two_roles(self, store: Store) -> None:
        given = kernel("fallback")
        first, second = store.put_kernel(given), store.put_kernel(replace(given, role="tuned"))
        assert first.id != second.id
        assert store.kernel(GEMM, DEVICE.key, "sustained") == second

    def test_kernels_are_listed_newest_first_page_by_page(self, store: Store) -> None:
        stored = [store.put_kernel(kernel(gemm=GEMM.with_(m=17 + 2 * step))) for step in range(5)]
        stored.reverse()
        assert store.kernels() == stored
        assert store.kernels(limit=2) == stored[:2]
        assert store.kernels(limit=2, after=stored[1].id) == stored[2:4]
        assert store.kernels(after=stored[-1].id) == []
        assert store.kernels(limit=0) == []

    def test_a_page_behind_an_unknown_kernel_is_refused(self, store: Store) -> None:
        with pytest.raises(StoreError, match="nope"):
            store.kernels(after="nope")
        assert store.kernel_by_id("nope") is None

    # -- devices and blobs ---------------------------------------------------------------------

    def test_a_device_is_described_again_and_again(self, store: Store) -> None:
        store.put_device(DEVICE)
        store.put_device(DEVICE.with_(clock_mhz=2222, environment=(("tvm", "0.28"),)))

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 4099])
    def test_a_blob_comes_back_under_its_hash(self, store: Store, data: bytes) -> None:
        sha256 = store.put_blob(data)
        assert sha256 == hashlib.sha256(data).hexdigest()
        assert store.get_blob(sha256) == data
        assert store.put_blob(data) == sha256

    @pytest.mark.parametrize("name", ["0" * 64, "", "../../etc/passwd", "A" * 64])
    def test_an_unknown_blob_is_an_error(self, store: Store, name: str) -> None:
        with pytest.raises(StoreError):
            store.get_blob(name)
