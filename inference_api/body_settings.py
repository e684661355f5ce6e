"""`BodySettings`: how request bodies are read."""

from typing import Literal

from pydantic import BaseModel, Field

from inference_api.bodies.left_aside import ReadingRules


class BodySettings(BaseModel):
    """Immutable."""

    unknown_fields: Literal["ignore", "refuse"] = Field(
        "ignore",
        description="What becomes of a field that nobody here knows: left aside and said, or 400.",
    )
    images: Literal["ignore", "refuse"] = Field(
        "ignore",
        description="What becomes of images, sounds and files: a text in their place, or 400.",
    )

    @property
    def reading_rules(self) -> ReadingRules:
        return ReadingRules(self.unknown_fields == "refuse", self.images == "refuse")
