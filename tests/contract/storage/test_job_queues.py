"""The job queue held to its contract on every database."""

from __future__ import annotations

import pytest

from tests.contract.storage.batch_contract import BatchContract
from tests.contract.storage.job_lease_contract import JobLeaseContract
from tests.contract.storage.job_order_contract import JobOrderContract
from tests.contract.storage.job_queue_contract import JobQueueContract
from tests.contract.storage.job_submission_contract import JobSubmissionContract
from tirgemm.tuning_db import Database


class TestSqliteJobSubmission(JobSubmissionContract):
    @pytest.fixture
    def database(self, sqlite_database: Database) -> Database:
        return sqlite_database


class TestPostgresJobSubmission(JobSubmissionContract):
    @pytest.fixture
    def database(self, postgres_database: Database) -> Database:
        return postgres_database


class TestSqliteJobQueue(JobQueueContract):
    @pytest.fixture
    def database(self, sqlite_database: Database) -> Database:
        return sqlite_database


class TestPostgresJobQueue(JobQueueContract):
    @pytest.fixture
    def database(self, postgres_database: Database) -> Database:
        return postgres_database


class TestSqliteJobLeases(JobLeaseContract):
    @pytest.fixture
    def database(self, sqlite_database: Database) -> Database:
        return sqlite_database


class TestPostgresJobLeases(JobLeaseContract):
    @pytest.fixture
    def database(self, postgres_database: Database) -> Database:
        return postgres_database


class TestSqliteJobOrder(JobOrderContract):
    @pytest.fixture
    def database(self, sqlite_database: Database) -> Database:
        return sqlite_database


class TestPostgresJobOrder(JobOrderContract):
    @pytest.fixture
    def database(self, postgres_database: Database) -> Database:
        return postgres_database


class TestSqliteBatches(BatchContract):
    @pytest.fixture
    def database(self, sqlite_database: Database) -> Database:
        return sqlite_database


class TestPostgresBatches(BatchContract):
    @pytest.fixture
    def database(self, postgres_database: Database) -> Database:
        return postgres_database
