"""Builders that note what they are asked for, and build nothing."""

from __future__ import annotations

from collections.abc import Hashable

from tirgemm.config import Config
from tirgemm.gemm import Gemm
from tirgemm.tuning.build.processes import Build


class HeardBuilds:
    """``builds`` has everything that was asked for, in order; the test ends the futures."""

    count = 1

    def __init__(self) -> None:
        self.builds: list[Build] = []

    def warm(self) -> None: ...

    def submit(self, asker: Hashable, build: Build) -> None:
        del asker
        self.builds.append(build)

    @property
    def asked(self) -> list[tuple[Gemm, Config]]:
        return [(build.gemm, build.config) for build in self.builds]

    def begin(self) -> None:
        for build in self.builds:
            build.future.set_running_or_notify_cancel()
