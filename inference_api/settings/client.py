"""`ClientSettings`: bounds on the size and slowness of requests, and how bodies are read."""

from typing import Literal

from pydantic import BaseModel, Field


class ClientSettings(BaseModel):
    """Immutable."""

    max_content_length_bytes: int = Field(
        4 * 1024 * 1024,
        alias="MAX_CONTENT_LENGTH",
        ge=1024,
        le=1024**3,
        description="Largest request body in bytes.",
    )
    head_timeout_s: float = Field(
        5.0,
        alias="HEAD_TIMEOUT",
        gt=0,
        le=3600,
        description="Seconds a client may take to send a request's head.",
    )
    body_timeout_s: float = Field(
        10.0,
        alias="BODY_TIMEOUT",
        gt=0,
        le=3600,
        description="Seconds a client may take to send a body, beside those of MIN_BODY_RATE.",
    )
    min_body_bytes_per_s: int = Field(
        16 * 1024,
        alias="MIN_BODY_RATE",
        ge=1,
        le=1024**3,
        description="Bytes of a body that earn the client one more second.",
    )
    max_connections: int = Field(
        4096,
        ge=64,
        le=1_000_000,
        description="Open connections; above it, whichever sent no whole request goes first.",
    )
    max_waiting_per_address: int = Field(
        256,
        ge=1,
        le=1_000_000,
        description="Connections of one address with no whole request yet; the oldest goes first.",
    )
    unknown_fields: Literal["ignore", "refuse"] = Field(
        "ignore",
        description="What becomes of a field that nobody here knows: left aside and said, or 400.",
    )
    images: Literal["ignore", "refuse"] = Field(
        "ignore",
        description="What becomes of images, sounds and files: a text in their place, or 400.",
    )
