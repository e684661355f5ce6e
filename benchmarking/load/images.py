"""Pictures to send with a prompt: seeded tiles of colour, as PNG in a data URL. Pure."""

import struct
import zlib
from base64 import b64encode
from random import Random

from benchmarking.records import ImageSize

PIXELS: dict[ImageSize, int] = {"small": 500, "medium": 1000, "large": 2000}
TILE_PIXELS = 50


def image_url(size: ImageSize, rng: Random) -> str:
    """A square of the size's side. `size` is not "na"."""
    return "data:image/png;base64," + b64encode(_png(PIXELS[size], rng)).decode()


def _png(side: int, rng: Random) -> bytes:
    """8-bit RGB without filters or interlacing (PNG specification, third edition)."""
    rows = []
    for _ in range(side // TILE_PIXELS):
        tiles = b"".join(rng.randbytes(3) * TILE_PIXELS for _ in range(side // TILE_PIXELS))
        rows.append((b"\0" + tiles) * TILE_PIXELS)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
