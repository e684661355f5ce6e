"""Plans the steps of a model: chooses the prompt tokens and decoding rows' tokens of each step.

Decode thread only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from inference_api.core.drafts import DraftSource, Outcome, accepted_branch
from inference_api.core.rows import NO_DRAFT, Draft, RowTable, UserRow
from inference_api.core.served_model import ServedModel
from inference_api.core.step_costs import Contents, StepCosts
from inference_api.request import OutputQueue, TokenEvent
from inference_api.runner import MAX_STEP_TOKENS, ModelRunner, RowResult, RowStep
from inference_api.settings import Settings

MIN_CHUNK_TOKENS = 8  # lets prompts make progress even if the budget is used up


def chunk_tokens(settings: Settings, runner: ModelRunner | ServedModel) -> int:
    """Returns the most prompt tokens of a step: PREFILL_CHUNK_TOKENS, or the runner's default."""
    return settings.prefill_chunk_tokens or runner.chunk_tokens


def budget_tokens(settings: Settings, max_rows: int) -> int:
    """Returns the most tokens, prompts included, of a step with decoding rows: see ITL_BUDGET."""
    return round(settings.itl_budget * max_rows)


@dataclass(slots=True)
class PlannedStep:
    """The tokens of each row in a step: prompt tokens, or its next token and a draft after it."""

    prompts: list[tuple[UserRow, RowStep]] = field(default_factory=list)
    decoding: list[tuple[UserRow, RowStep]] = field(default_factory=list)
    # `accept` fills `kept` with the accepted tokens of each draft, and the next two fields.
    kept: list[tuple[RowStep, Sequence[int]]] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)  # one per decoding row
    events: list[tuple[OutputQueue, TokenEvent]] = field(default_factory=list)
    model_s: float = 0.0  # seconds inside the model
    reused_tokens: int = 0  # prompt tokens that other rows prefilled while these rows waited

    @property
    def rows(self) -> list[RowStep]:
        return [each for _, each in self.prompts + self.decoding]

    @property
    def contents(self) -> Contents:
        num_tokens = sum([len(each.token_ids) for _, each in self.decoding])
        prompt_tokens = sum([len(each.token_ids) for _, each in self.prompts])
        return Contents(len(self.decoding), num_tokens, prompt_tokens)

    @property
    def is_empty(self) -> bool:
        return not (self.prompts or self.decoding)

    def accept(self, results: Sequence[RowResult]) -> None:
        """Give the drawn tokens to the rows, and collect the events for their readers."""
        for (row, _), result in zip(self.prompts, results, strict=False):
            row.prompt_logprobs += [each.logprobs for each in result.drawn if each.logprobs]
            if row.pooled is not None and result.hidden is not None:
                row.pooled.add(result.hidden)
        batch_size = len(self.decoding)
        for (row, step), result in zip(self.decoding, results[len(self.prompts) :], strict=True):
            drawn, drafted_tokens, last = result.drawn, 0, 0
            if row.pooled is not None and result.hidden is not None:
                row.pooled.add(result.hidden[:1])
            if len(drawn) > 1:
                drafted_tokens = max(step.positions) - step.start  # the depth, if it is a tree
                tokens, drawn = accepted_branch(step, drawn)
                self.kept.append((step, tokens))
                last = tokens[-1]
            hidden = None if result.hidden is None else result.hidden[last]
            self.outcomes.append(Outcome(row, drawn, hidden))
            event = row.accept(drawn, batch_size, drafted_tokens)
            self.events.append((row.request.output, event))


class StepPlanner:
    """Plans the steps of one runner's rows."""

    def __init__(
        self,
        rows: RowTable,
        runner: ModelRunner,
        settings: Settings,
        drafts: DraftSource | None = None,
        costs: StepCosts | None = None,
    ) -> None:
        """`costs` estimates step times; ITL_BUDGET_MS has no effect without it."""
        self._rows = rows
        self._max_rows = len(rows.users)
        self._is_batch_invariant = runner.is_batch_invariant
        self._chunk_tokens = chunk_tokens(settings, runner)
        if runner.layout.has_windows:
            self._chunk_tokens = min(self._chunk_tokens, MAX_STEP_TOKENS)
        self._budget_tokens = budget_tokens(settings, self._max_rows)
        self._itl_budget_ms = settings.itl_budget_ms
        self._costs = costs
        self._drafts = drafts
        self._guessable: Sequence[UserRow] = ()  # rows of this step that will decode in the next
        self._drafted: tuple[Sequence[UserRow], Mapping[int, Draft]] = (), {}

    def plan(self) -> PlannedStep:
        """Returns the next step: prompt tokens as far as they fit, the oldest prompts first; one
        token of each row whose prompt is prefilled or ends here; drafts in the remaining room."""
        step, decoding = PlannedStep(), self._going_on()
        drafts = self._taken_drafts(decoding)
        room_tokens = self.room_tokens(len(decoding))
        if prompts := self._next_to_prefill(room_tokens, step):
            for row, most_tokens in prompts:
                if self._rows.users[row.index] is not row:  # it has paused for an earlier row
                    continue
                room_tokens -= self._take_prompt(row, min(most_tokens, room_tokens), step)
            decoding = self._rows.decoding()
            if drafts:
                share_tokens = max(room_tokens, 0) // len(drafts)
                drafts = {index: each.first(share_tokens) for index, each in drafts.items()}
        # Prompts that still wait will fill the next step and leave no room for guesses.
        has_waiting = bool(prompts and self._rows.prefilling())
        self._guessable = () if has_waiting or self._drafts is None else decoding
        wants_hidden = not has_waiting and self._drafts is not None and self._drafts.wants_hidden
        for row in decoding:
            guesses = drafts.get(row.index, NO_DRAFT) if drafts else NO_DRAFT
            has_room = guesses is NO_DRAFT and row.num_cached < row.room_tokens
            draft = guesses if has_room else self._reserved(row, guesses)
            if draft is not None:
                step.decoding.append((row, row.take_step(draft, wants_hidden)))
        return step

    def draft(self) -> None:
        """Draft for the rows that decode in the next step, unless prompts will take the room.

        Call it before events are published: publishing wakes other threads, which would then hold
        the interpreter lock while drafts are made.
        """
        if self._drafts is not None and self._guessable:
            rows = [row for row in self._guessable if row.finish_reason is None]
            self._drafted = rows, self._drafts.propose(rows)

    def _going_on(self) -> list[UserRow]:
        """Returns the decoding rows, each with a page for its next token. If pages run out, the
        rows admitted last pause."""
        rows, decoding = self._rows, self._rows.decoding()
        lacking = [row for row in decoding if row.num_cached >= row.room_tokens]
        if all(rows.reserve(row, 1) for row in lacking):
            return decoding
        for row in sorted(decoding, key=lambda each: each.number):
            if rows.users[row.index] is row:  # else it has paused for an earlier row
                rows.make_room(row, 1)
        return rows.decoding()

    def _reserved(self, row: UserRow, draft: Draft) -> Draft | None:
        """Reserve pages for the row's next token and its draft.

        Returns the draft, or an empty draft if there are too few pages for it. Returns None if
        there is no page even for the next token; the row then has to wait.
        """
        if draft.token_ids:
            draft = row.fitting(draft)
            if self._rows.reserve(row, 1 + len(draft.token_ids)):
                return draft
        return NO_DRAFT if self._rows.reserve(row, 1) else None

    def _has_room(self, row: UserRow, num_tokens: int) -> bool:
        """Reserves pages for the next tokens of a prompt. Returns False if there are too few, and
        the prompt has to wait. Other rows pause for the row that was admitted first."""
        if self._rows.reserve(row, num_tokens):
            return True
        is_first = all(row.number <= each.number for each in self._rows.busy())
        return is_first and self._rows.make_room(row, num_tokens)

    def _taken_drafts(self, decoding: Sequence[UserRow]) -> Mapping[int, Draft]:
        """Takes the drafts that `draft` made. Returns those for rows that still decode."""
        rows, drafts = self._drafted
        self._drafted = (), {}
        if not drafts:
            return {}
        rows_by_index = {row.index: row for row in decoding}
        return {
            row.index: drafts[row.index]
            for row in rows
            if row.index in drafts and rows_by_index.get(row.index) is row
        }

    def room_tokens(self, num_decoding: int) -> int:
        """Returns how many prompt tokens fit into a step in which `num_decoding` rows decode.

        If rows decode, the step may take ITL_BUDGET_MS. Without that setting it may have ITL_BUDGET
        times as many tokens as there are rows, as if its time were proportional to its tokens. A
        runner that is not batch invariant always gets whole chunks, so that the load does not
        change where a prompt is cut.
        """
        if not num_decoding or not self._is_batch_invariant:
            return self._chunk_tokens
        left_tokens = self._tokens_in_time(num_decoding)
        if left_tokens is None:
            left_tokens = self._budget_tokens - num_decoding
        return min(self._chunk_tokens, max(left_tokens, MIN_CHUNK_TOKENS))

    def _tokens_in_time(self, num_decoding: int) -> int | None:
        """Returns how many prompt tokens fit into ITL_BUDGET_MS; None without that setting, or
        before the first prompt was timed."""
        if self._itl_budget_ms is None or self._costs is None:
            return None
        token_s = self._costs.prompt_token_s(num_decoding)
        if token_s is None:
            return None
        left_s = self._itl_budget_ms / 1000 - self._costs.turn_s(num_decoding)
        return int(min(left_s / token_s, self._chunk_tokens) if token_s else self._chunk_tokens)

    def _next_to_prefill(self, room_tokens: int, step: PlannedStep) -> list[tuple[UserRow, int]]:
        """Returns the rows to prefill in this step, and the most tokens that each may take.

        Before that, rows take over pages that others have prefilled for the same prompt beginnings,
        and wait for those that the first row is about to prefill. The row admitted first goes
        first. Rows that lack fewer tokens may take up to half of the room, the shortest first, so
        that a short prompt does not wait for all of a long one. If the runner is not batch
        invariant, rows take whole chunks in order of admission.
        """
        rows, first_tokens = self._rows.prefilling(), room_tokens
        if self._is_batch_invariant and len(rows) > 1:
            first_lacks = rows[0].lacking_tokens
            rows[1:] = sorted(rows[1:], key=lambda row: min(row.lacking_tokens, first_lacks))
            passing = [each for row in rows[1:] if (each := row.lacking_tokens) < first_lacks]
            first_tokens = max(-(-room_tokens // 2), room_tokens - sum(passing))
        shares: list[tuple[UserRow, int]] = []
        for row in rows:
            if not row.has_begun and not row.needs_all_tokens:
                num_before = row.reused_tokens
                self._rows.reuse(row)
                step.reused_tokens += row.reused_tokens - num_before
                pages = self._rows.pages
                if pages.is_reading(row.index):
                    continue
                if shares and pages.had_better_wait(row.index, leader=shares[0][0].index):
                    continue
            shares.append((row, room_tokens if shares else first_tokens))
            room_tokens -= row.chunk_tokens(shares[-1][1])
            if room_tokens == 0:
                break
        if shares and room_tokens:  # which rows that wait have left
            shares[0] = shares[0][0], shares[0][1] + room_tokens
        return shares

    def _take_prompt(self, row: UserRow, room_tokens: int, step: PlannedStep) -> int:
        """Add chunks of one prompt to the step, up to its end, a border (see `RowPages.borders`) or
        the end of the room. Returns the number of tokens added."""
        taken_tokens = 0
        while not row.is_prefilled:
            size_tokens = row.chunk_tokens(self._chunk_tokens)
            if self._is_batch_invariant:
                size_tokens = min(size_tokens, room_tokens - taken_tokens)
            if not 0 < size_tokens <= room_tokens - taken_tokens:
                break
            if not self._has_room(row, size_tokens + 1):  # one more for the token after them
                break
            step.prompts.append((row, row.take_prompt(size_tokens)))
            taken_tokens += size_tokens
            if row.num_cached in row.borders:
                break
        return taken_tokens
