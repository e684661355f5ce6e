"""The fixed user rows: which row runs whom, and how far each one is. Decode thread only."""

from dataclasses import dataclass, field

from inference_api.engine.runner import DecodeInput
from inference_api.request import FinishReason, GenerationRequest, SessionId, TokenEvent


@dataclass(slots=True)
class UserRow:
    """One request in its row. The prompt's last token is never prefilled: it starts decoding."""

    index: int
    request: GenerationRequest
    token_limit: int  # tokens this row may produce, bounded by max_tokens and the context
    admitted_at_s: float
    num_prefilled: int = 0
    generated: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None

    @property
    def session_id(self) -> SessionId:
        return self.request.session_id

    @property
    def is_prefilled(self) -> bool:
        return self.num_prefilled >= len(self.request.prompt_tokens) - 1

    def next_chunk(self, chunk_tokens: int) -> tuple[int, ...]:
        """The next prompt tokens to prefill. Chunks depend on the prompt alone, not on load."""
        end = min(self.num_prefilled + chunk_tokens, len(self.request.prompt_tokens) - 1)
        return self.request.prompt_tokens[self.num_prefilled : end]

    def decode_input(self) -> DecodeInput:
        prompt = self.request.prompt_tokens
        return DecodeInput(
            row=self.index,
            token_id=self.generated[-1] if self.generated else prompt[-1],
            position=len(prompt) - 1 + len(self.generated),
            sampling=self.request.sampling,
            prompt_tokens=prompt,
            generated=self.generated,
        )

    def accept(self, token_id: int, batch_size: int) -> TokenEvent:
        """Take the token that a decode step drew, and say what the session gets to see."""
        if token_id in self.request.stop_token_ids:
            self.finish_reason = FinishReason.STOP
            return TokenEvent((), self.finish_reason, None, self.admitted_at_s, batch_size)
        self.generated.append(token_id)
        if len(self.generated) >= self.token_limit:
            self.finish_reason = FinishReason.LENGTH
        return TokenEvent((token_id,), self.finish_reason, None, self.admitted_at_s, batch_size)


class RowTable:
    """`users[i]` is the request in row i, or None while the row is free."""

    def __init__(self, max_rows: int) -> None:
        self.users: list[UserRow | None] = [None] * max_rows

    def has_free_row(self) -> bool:
        return None in self.users

    def assign(self, request: GenerationRequest, max_seq_len: int, now_s: float) -> UserRow:
        """Put a request into the first free row; the caller has asked `has_free_row`."""
        index = self.users.index(None)
        room = max_seq_len - len(request.prompt_tokens)
        row = UserRow(index, request, min(request.max_tokens, room), admitted_at_s=now_s)
        self.users[index] = row
        return row

    def free(self, row: UserRow) -> None:
        assert self.users[row.index] is row, "a row is freed once, by the request that holds it"
        self.users[row.index] = None

    def busy(self) -> list[UserRow]:
        return [user for user in self.users if user is not None]

    def prefilling(self) -> list[UserRow]:
        """Busy rows with prompt tokens still to prefill, the longest waiting first."""
        rows = [user for user in self.users if user is not None and not user.is_prefilled]
        return sorted(rows, key=lambda row: row.admitted_at_s)

    def decoding(self) -> list[UserRow]:
        return [user for user in self.users if user is not None and user.is_prefilled]

    def __len__(self) -> int:
        """How many rows are busy."""
        return len(self.users) - self.users.count(None)
