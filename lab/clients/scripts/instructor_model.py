"""Instructor: an answer as an object, by a tool."""

import sys

import instructor
import openai
from pydantic import BaseModel


class Note(BaseModel):
    """What a note says."""

    text: str


client = instructor.from_openai(openai.OpenAI())
messages = [{"role": "user", "content": sys.argv[1]}]
note = client.chat.completions.create(model="tiny", response_model=Note, messages=messages)
assert note.text == "Done.", note
