"""The shared store: a Redis server, for several processes or machines.

Hash `weights:session:<id>` and list `weights:observations:<id>` are a session's; `weights:sessions`
has all ids.
"""

from collections.abc import Sequence
from typing import Any

from common.stores.redis_store import RedisServer
from weights.search import Observation, Problem
from weights.session import (
    Session,
    UpdateEffect,
    apply_update,
    best_of,
    dump_observation,
    dump_problem,
    load_observation,
    load_problem,
)

FAILED = "the Redis store failed"
INDEX = "weights:sessions"
FIELDS = ("problem", "best")

# KEYS session, observations, index.
# ARGV id, kind, problem, best of the new observations, its metric, direction, the observations.
# Returns the session before the update. Writes nothing if the session is of another kind.
APPEND = """
local old = redis.call('HMGET', KEYS[1], 'problem', 'best', 'kind', 'metric')
local count = redis.call('LLEN', KEYS[2])
if old[3] and old[3] ~= ARGV[2] then return {old[1], old[2], count} end
local metric, best = tonumber(ARGV[5]), not old[4]
if old[4] and ARGV[6] == 'maximize' then best = metric > tonumber(old[4]) end
if old[4] and ARGV[6] == 'minimize' then best = metric < tonumber(old[4]) end
for i = 7, #ARGV do redis.call('RPUSH', KEYS[2], ARGV[i]) end
redis.call('HSET', KEYS[1], 'kind', ARGV[2], 'problem', ARGV[3])
if best then redis.call('HSET', KEYS[1], 'best', ARGV[4], 'metric', ARGV[5]) end
redis.call('ZADD', KEYS[3], 0, ARGV[1])
return {old[1], old[2], count}
"""


class RedisStore:
    """The store in Redis. An update is one script in one round trip."""

    def __init__(self, url: str) -> None:
        self._server = RedisServer(url)
        self._append = self._server.client.register_script(APPEND)

    def append(
        self, session_id: str, problem: Problem, observations: Sequence[Observation]
    ) -> UpdateEffect:
        best = best_of(problem.direction, observations)
        with self._server.connected(FAILED):
            reply: Any = self._append(
                keys=[_session_key(session_id), _observations_key(session_id), INDEX],
                args=[
                    session_id,
                    f"{problem.number_of_nodes} {problem.direction}",
                    dump_problem(problem),
                    dump_observation(best),
                    repr(best.metric),
                    problem.direction,
                    *map(dump_observation, observations),
                ],
            )
        return apply_update(_session(session_id, *reply), session_id, problem, observations)

    def find(self, session_id: str) -> Session | None:
        return self._find([session_id])[0]

    def observations(self, session_id: str, first: int, count: int) -> list[Observation]:
        if count < 1:
            return []
        with self._server.connected(FAILED) as client:
            lines: Any = client.lrange(_observations_key(session_id), first, first + count - 1)
        return [load_observation(line) for line in lines]

    def sessions(self, first: int, count: int) -> list[Session]:
        if count < 1:
            return []
        with self._server.connected(FAILED) as client:
            ids: Any = client.zrange(INDEX, first, first + count - 1)
        return [session for session in self._find(ids) if session is not None]

    def delete(self, session_id: str) -> bool:
        with self._server.connected(FAILED) as client, client.pipeline() as pipeline:
            pipeline.delete(_session_key(session_id))
            pipeline.delete(_observations_key(session_id))
            pipeline.zrem(INDEX, session_id)
            return bool(pipeline.execute()[0])

    def close(self) -> None:
        self._server.close()

    def _find(self, session_ids: Sequence[str]) -> list[Session | None]:
        with self._server.connected(FAILED) as client, client.pipeline() as pipeline:
            for session_id in session_ids:
                pipeline.hmget(_session_key(session_id), *FIELDS)
                pipeline.llen(_observations_key(session_id))
            replies = pipeline.execute()
        return [
            _session(session_id, fields[0], fields[1], count)
            for session_id, fields, count in zip(
                session_ids, replies[::2], replies[1::2], strict=True
            )
        ]


def _session_key(session_id: str) -> str:
    return f"weights:session:{session_id}"


def _observations_key(session_id: str) -> str:
    return f"weights:observations:{session_id}"


def _session(
    session_id: str, problem: str | None, best: str | None, num_observations: int
) -> Session | None:
    if problem is None or best is None:
        return None
    return Session(session_id, load_problem(problem), num_observations, load_observation(best))
