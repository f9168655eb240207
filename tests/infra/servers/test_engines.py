"""The real engines: they serve, keep data and addresses over restarts, and end with whoever started them."""

from __future__ import annotations

import pytest

from agl_stream.infra.servers import Apicurio, Cassandra, Connect, Kafka, Postgres

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]


def test_session_fixtures(kafka: Kafka, cassandra: Cassandra, apicurio: Apicurio, connect: Connect, postgres: Postgres):
    assert postgres.sql("select 1") == "1"
