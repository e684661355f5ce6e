"""Connections to a Redis server, and a store of records in it."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from common.errors import StoreFailed
from common.stores import Record

TIMEOUT_S = 5.0


class RedisServer:
    """A Redis server. Its durability depends on its configuration: `appendonly yes` and
    `appendfsync always` give that of SQLite. Any thread. Connects at the first use."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for an invalid Redis URL."""
        self.client: Redis = Redis.from_url(
            url,
            decode_responses=True,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            # A command whose answer was lost may have been executed, and a retry could execute it
            # twice, so the error is reported.
            retry=Retry(NoBackoff(), 0),
        )

    @contextmanager
    def connected(self, failed: str) -> Iterator[Redis]:
        """Yields the connection. Raises StoreFailed, whose message begins with `failed`."""
        try:
            yield self.client
        except RedisError as error:
            raise StoreFailed(f"{failed}: {error}") from error

    def close(self) -> None:
        self.client.close()


class RedisRecords:
    """A hash per kind under a prefix, and a set of the kinds, written in one transaction."""

    def __init__(self, url: str, prefix: str) -> None:
        self._prefix = prefix
        self._server = RedisServer(url)

    def load(self) -> list[Record]:
        with self._server.connected("cannot read the state from Redis") as client:
            kinds = sorted(str(kind) for kind in client.smembers(self._prefix))
            return [
                Record(kind, str(name), str(body))
                for kind in kinds
                for name, body in client.hgetall(self._key(kind)).items()
            ]

    def commit(self, changes: Iterable[Record]) -> None:
        failed = "the state was not saved to Redis"
        with (
            self._server.connected(failed) as client,
            client.pipeline(transaction=True) as pipeline,
        ):
            kinds = set()
            for kind, name, body in changes:
                if body is None:
                    pipeline.hdel(self._key(kind), name)
                else:
                    kinds.add(kind)
                    pipeline.hset(self._key(kind), name, body)
            if kinds:
                pipeline.sadd(self._prefix, *kinds)
            pipeline.execute()

    def close(self) -> None:
        self._server.close()

    def _key(self, kind: str) -> str:
        return f"{self._prefix}:{kind}"
