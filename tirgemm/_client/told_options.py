"""``told_as_options``: client errors for the command line, whose advice names an option of ``tirgemm get`` in place of
a Python argument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tirgemm._client.http import accepts_unverified
from tirgemm._client.requested_kernel import TAKES_DEFAULT
from tirgemm.errors import MismatchedArtifact, ServiceError, UnverifiedArtifact


@contextmanager
def told_as_options() -> Iterator[None]:
    """Within the block the client's errors name options of the command line, not arguments."""
    try:
        yield
    except MismatchedArtifact as error:
        words = str(error).replace(TAKES_DEFAULT, "--default, --wait SECONDS or --effort none")
        raise MismatchedArtifact(words) from error
    except UnverifiedArtifact as error:
        words = str(error).replace("verify=False", "--unverified").replace("retune=True", "--retune")
        raise UnverifiedArtifact(words) from error
    except ServiceError as error:
        if not accepts_unverified(error.problem):
            raise
        words = f"{error.problem.get('detail')}; --unverified takes a build that nobody has run"
        raise ServiceError(words, error.problem, error.http_status) from error
