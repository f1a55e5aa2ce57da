"""Token buckets of API keys in memory that processes share."""

from __future__ import annotations

import mmap
import tempfile

from tirgemm.service.access.rate_limit import SharedBuckets


def test_a_bucket_refills() -> None:
    buckets = SharedBuckets(mmap.mmap(-1, SharedBuckets.BYTES), 0)
    assert [buckets.take("key", 2.0, 100.0) for _ in range(3)] == [0, 0, 1]
    assert buckets.take("key", 2.0, 100.5) == 0
    assert buckets.take("key", 2.0, 100.5) == 1
    assert buckets.take("key", 2.0, 50.0) == 1, "a clock that goes back gives nothing"
    assert [buckets.take("slow", 0.1, now) for now in (0.0, 0.0, 5.0, 10.0)] == [0, 10, 5, 0]


def test_what_one_process_takes_is_gone_for_the_other() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(64 + SharedBuckets.BYTES)
        one, other = (SharedBuckets(mmap.mmap(file.fileno(), 64 + SharedBuckets.BYTES), 64) for _ in range(2))
        assert [one.take("key", 3.0, 100.0), other.take("key", 3.0, 100.0), one.take("key", 3.0, 100.0)] == [0, 0, 0]
        assert (one.take("key", 3.0, 100.0), other.take("key", 3.0, 100.0)) == (1, 1)
        assert other.take("another", 3.0, 100.0) == 0
        assert one.take("key", 3.0, 101.0) == 0
        assert one.take("key", 0.5, 101.0) == 0, "with another rate the bucket is full again"
        assert other.take("key", 0.5, 101.0) == 2


def test_a_full_memory_forgets_the_bucket_that_was_longest_unused() -> None:
    buckets = SharedBuckets(mmap.mmap(-1, SharedBuckets.BYTES), 0)
    keys = [f"key {number}" for number in range(2 * SharedBuckets.SLOTS)]
    for now, key in enumerate(keys):
        assert buckets.take(key, 1.0, float(now)) == 0
    later = float(len(keys))
    kept = [key for key in keys if buckets.take(key, 1.0, later) and buckets.take(key, 1.0, later)]
    assert not kept, "all were full again by then"
    assert buckets.take(keys[-1], 1.0, later) == 1
