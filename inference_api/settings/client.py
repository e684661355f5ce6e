"""`ClientSettings`: bounds on the size and slowness of requests, and how bodies are read."""

from typing import Literal

from pydantic import BaseModel, Field


class ClientSettings(BaseModel):
    """Immutable."""

    max_content_length_bytes: int = Field(
        4 * 1024 * 1024, alias="MAX_CONTENT_LENGTH", ge=1024, le=1024**3
    )
    head_timeout_s: float = Field(5.0, alias="HEAD_TIMEOUT", gt=0, le=3600)
    body_timeout_s: float = Field(10.0, alias="BODY_TIMEOUT", gt=0, le=3600)
    min_body_bytes_per_s: int = Field(16 * 1024, alias="MIN_BODY_RATE", ge=1, le=1024**3)
    max_connections: int = Field(4096, ge=64, le=1_000_000)
    max_waiting_per_address: int = Field(256, ge=1, le=1_000_000)
    unknown_fields: Literal["ignore", "refuse"] = "ignore"
    images: Literal["ignore", "refuse"] = "ignore"
