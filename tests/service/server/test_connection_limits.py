"""Counts of connections: of all, of one address, and of the reserve for probes."""

from __future__ import annotations

import pytest

from tirgemm.service.server.connection_limits import RESERVED, ConnectionLimits, counted_address
from tirgemm.service.settings import Settings


class Connection:
    """A connection that is silent until the test says otherwise."""

    def __init__(self) -> None:
        self.is_silent = True
        self.has_given_way = False

    def give_way(self) -> None:
        self.has_given_way = True


def test_connections_are_counted_by_address_and_forgotten_when_they_close() -> None:
    limits = ConnectionLimits(4, 2)
    connections = [Connection() for _ in range(4)]
    for connection, address in zip(connections, ("a", "a", "b", ""), strict=True):
        assert limits.excess(address) == ""
        limits.take(connection, address)
    assert "the service has 4 connections" in limits.excess("c")
    limits.release(connections[2])
    assert "a has 2 connections" in limits.excess("a")
    assert limits.excess("b") == limits.excess("") == ""
    for connection in connections:
        limits.release(connection)
        limits.release(connection)
    assert (limits._taken, limits._of_address) == ({}, {}), "nothing is kept of closed connections"


def test_the_oldest_silent_connection_of_a_full_reserve_gives_way() -> None:
    limits = ConnectionLimits(0, 0)
    connections = [Connection() for _ in range(RESERVED)]
    assert all(map(limits.reserve, connections))
    connections[0].is_silent = False
    newest = Connection()
    assert limits.reserve(newest)
    assert [one.has_given_way for one in connections] == [False, True] + [False] * (RESERVED - 2)
    for one in (*connections, newest):
        one.is_silent = False
    assert not limits.reserve(Connection()), "all are being answered"
    limits.release(connections[1])
    assert not limits.reserve(Connection()), "it was forgotten before"
    limits.release(connections[0])
    assert limits.reserve(Connection())


@pytest.mark.parametrize(
    ("host", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9%eth0", "2001:db8:1:2::/64"),
        ("127.0.0.9", ""),
        ("::ffff:127.0.0.1", ""),
        ("::1", ""),
        ("", ""),
        ("/run/socket", ""),
    ],
)
def test_one_host_counts_under_one_address(host: str, counted: str) -> None:
    assert counted_address((host, 7)) == counted
    assert counted_address(None) == ""


def test_one_address_has_three_quarters_unless_a_setting_says_otherwise() -> None:
    assert Settings(max_connections=256).connections_of_address == 192
    assert Settings(max_connections=8, max_connections_per_address=500).connections_of_address == 500
