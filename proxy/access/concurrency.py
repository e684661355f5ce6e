"""Counts a team's running requests, in this process or, through Redis, in all proxies.

In Redis each running request holds a lease in its team's sorted set, scored by its expiry. Leases
are renewed while the proxy runs, so those of a dead one expire.
"""

import threading
from collections import Counter
from typing import Any

LEASE_MS = 60_000

_NOW_MS = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
"""
_ENTER = """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local running = redis.call('ZCARD', KEYS[1])
if running >= tonumber(ARGV[2]) then return running end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
redis.call('PEXPIRE', KEYS[1], 2 * tonumber(ARGV[3]))
return -1
"""
_RENEW = """
for i = 2, #ARGV do redis.call('ZADD', KEYS[1], 'XX', now + tonumber(ARGV[1]), ARGV[i]) end
redis.call('PEXPIRE', KEYS[1], 2 * tonumber(ARGV[1]))
"""


class LocalPlaces:
    """Counts in this process. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()

    def enter(self, team_id: str, place_id: str, max_places: int) -> int | None:
        """Takes a place. Returns None, or if none is left, the number of places taken."""
        with self._lock:
            running = self._running[team_id]
            if running >= max_places:
                return running
            self._running[team_id] = running + 1
            return None

    def leave(self, team_id: str, place_id: str) -> None:
        with self._lock:
            self._running[team_id] -= 1
            if self._running[team_id] <= 0:
                del self._running[team_id]


class SharedPlaces:
    """Counts by leases in Redis. Any thread. Raises the client's errors."""

    def __init__(self, client: Any) -> None:
        """`client` is a redis-py client. Its module is not imported here."""
        self._client = client
        self._enter = client.register_script(_NOW_MS + _ENTER)
        self._renew = client.register_script(_NOW_MS + _RENEW)
        self._lock = threading.Lock()
        self._leases: set[tuple[str, str]] = set()

    def enter(self, team_id: str, place_id: str, max_places: int) -> int | None:
        """As `LocalPlaces.enter`."""
        answer = self._enter(keys=[_key(team_id)], args=[place_id, max_places, LEASE_MS])
        if answer >= 0:
            return int(answer)
        with self._lock:
            self._leases.add((team_id, place_id))
        return None

    def leave(self, team_id: str, place_id: str) -> None:
        with self._lock:
            self._leases.discard((team_id, place_id))
        self._client.zrem(_key(team_id), place_id)

    def renew(self) -> None:
        """Renews leases. Call it more often than every LEASE_MS, or requests stop counting."""
        with self._lock:
            leases = sorted(self._leases)
        for team_id in {team_id for team_id, _ in leases}:
            place_ids = [place_id for owner, place_id in leases if owner == team_id]
            self._renew(keys=[_key(team_id)], args=[LEASE_MS, *place_ids])


Places = LocalPlaces | SharedPlaces


def _key(team_id: str) -> str:
    return f"hearth-running:{team_id}"
