"""The fake CUDA driver, in a process of its own for the tests of one file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.fake_cuda import FakeCuda


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeCuda]:
    fake = FakeCuda(tmp_path_factory.mktemp("driver"))
    yield fake
    fake.close()
