"""How ranks find each other again after a restart.

Restarted ranks may get a store that still holds the addresses of dead ones. Rank 0 therefore opens
a meeting under a new name each time and goes ahead with the ranks that came to it.
"""

import time
from datetime import timedelta
from uuid import uuid4

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

MEETING = "hearth/meeting"
LOOK_AGAIN_S = 0.2  # whether it is still the meeting


def meet(address: str, timeout_s: float) -> tuple[Store, int, int]:
    """What the ranks of this meeting have in common, this one's number, and how many there are.

    `address`: see torch's rendezvous. Raises RuntimeError and ValueError.
    """
    limit = timedelta(seconds=timeout_s)
    store, rank, num_ranks = next(rendezvous(address, timeout=limit))
    store.set_timeout(limit)
    meeting = _call(store, num_ranks) if rank == 0 else _come(store, rank, timeout_s)
    return PrefixStore(meeting, store), rank, num_ranks


def _call(store: Store, num_ranks: int) -> str:
    meeting = f"{MEETING}/{uuid4().hex}"
    store.set(MEETING, meeting)
    guests = [store.get(f"{meeting}/{rank}").decode() for rank in range(1, num_ranks)]
    store.set(f"{meeting}/guests", ",".join(guests))
    return meeting


def _come(store: Store, rank: int, timeout_s: float) -> str:
    name, until_s = uuid4().hex, time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        meeting: str = store.get(MEETING).decode()
        guests = f"{meeting}/guests"
        store.set(f"{meeting}/{rank}", name)
        try:
            store.wait([guests], timedelta(seconds=LOOK_AGAIN_S))
        except DistStoreError:
            continue  # others are on their way, or this was the last meeting
        if name in store.get(guests).decode():
            return meeting
        time.sleep(LOOK_AGAIN_S)  # it was the last one
    raise RuntimeError(f"rank 0 has called nobody for {timeout_s:.0f} s")
