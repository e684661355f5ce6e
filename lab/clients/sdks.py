"""Libraries: each is called by a script of ours in scripts/."""

from lab.clients.client import MODEL, NOTE, Client
from lab.clients.steering import Call

SDKS: tuple[Client, ...] = ()
