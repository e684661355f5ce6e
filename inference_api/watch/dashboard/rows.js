// The user rows as cells that stay in place; one of them is in the tab order, arrows move on.

import { bar, byId, h, setText } from "./dom.js";
import { count, duration, number } from "./format.js";

const list = byId("rows", HTMLElement);
const detail = byId("row-detail", HTMLElement);
const IDLE_DETAIL = "Point at a row, or move to it with the arrow keys, to see its request.";

const cells = [];
/** @type {ReturnType<typeof makeCell> | null} */
let shown = null; // the cell whose row is told in full
let rates = new Map(); // session id -> [generated tokens, at_s, tokens/s]

export function showRows(state) {
  while (cells.length > state.rows.length) cells.pop().item.remove();
  while (cells.length < state.rows.length) cells.push(makeCell(cells.length));
  rates = new Map(
    state.rows.filter(Boolean).map((row) => [row.session_id, rateOf(row, state.at_s)]),
  );
  const rows = state.bundle ? inPlace(state.rows) : state.rows;
  list.classList.toggle("of-several", state.server.models.length > 1);
  for (const [i, row] of rows.entries()) showRow(cells[i], row);
  showDetail();
}

/** Of a bundle only the busy rows are told: each keeps the cell it had, or gets a free one. */
function inPlace(rows) {
  const busy = new Map(rows.filter(Boolean).map((row) => [row.session_id, row]));
  const placed = cells.map(({ row }) => {
    const now = busy.get(row?.session_id) ?? null;
    busy.delete(row?.session_id);
    return now;
  });
  const newcomers = [...busy.values()];
  return placed.map((row) => row ?? newcomers.shift() ?? null);
}

/** Since the last look, or since the row began if this is the first. */
function rateOf(row, at_s) {
  const tokens = row.generated_tokens;
  const [old_tokens, then_s] = rates.get(row.session_id) ?? [0, at_s - row.running_s];
  return [tokens, at_s, Math.max(0, tokens - old_tokens) / Math.max(at_s - then_s, 0.001)];
}

function makeCell(index) {
  const parts = {};
  for (const name of ["phase", "who", "id", "model", "tokens", "rate"])
    parts[name] = h("span", { class: name });
  const filling = bar(0);
  const button = h(
    "button",
    { type: "button", class: "cell", tabindex: index ? -1 : 0 },
    h("span", { class: "index" }, String(index + 1).padStart(2, "0")),
    Object.values(parts),
    filling,
  );
  const cell = {
    index,
    parts,
    progress: filling.firstChild,
    button,
    item: h("li", {}, button),
    row: /** @type {any} */ (null),
  };
  const show = () => {
    shown = cell;
    showDetail();
  };
  button.addEventListener("focus", show);
  button.addEventListener("pointerenter", show);
  list.append(cell.item);
  return cell;
}

function showRow(cell, row) {
  cell.row = row;
  const { parts, button } = cell;
  button.dataset.phase = row ? row.phase : "free";
  const rate = row && rates.get(row.session_id)[2];
  setText(parts.phase, row ? row.phase : "free");
  setText(parts.who, row ? (row.team_id ?? row.session_id) : "");
  setText(parts.id, row ? (row.request_id ?? "") : "");
  setText(parts.model, row?.model ?? "");
  setText(parts.tokens, row ? `${row.prompt_tokens} → ${row.generated_tokens}` : "");
  setText(parts.rate, row ? `${number(rate)}/s` : "");
  cell.progress.style.setProperty("inline-size", `${row ? 100 * progress(row) : 0}%`);
  button.setAttribute("aria-label", row ? spoken(cell, row, rate) : `Row ${cell.index + 1}, free`);
}

/** Of the prompt while it is prefilled, of the answer after that. */
function progress(row) {
  return row.phase === "decode"
    ? row.generated_tokens / row.token_limit
    : row.cached_tokens / row.prompt_tokens;
}

function spoken(cell, row, rate) {
  return (
    `Row ${cell.index + 1}, ${row.phase}, ${row.team_id ?? "no team"}, ` +
    (row.model ? `model ${row.model}, ` : "") +
    `request ${row.request_id ?? "unknown"}, ${count(row.prompt_tokens, "prompt token")}, ` +
    `${count(row.generated_tokens, "token")} generated, ${number(rate)} per second`
  );
}

function showDetail() {
  if (!shown) return setText(detail, IDLE_DETAIL);
  const { index, row } = shown;
  if (!row) return setText(detail, `Row ${index + 1} is free.`);
  setText(
    detail,
    [
      `Row ${index + 1}: ${row.phase}`,
      row.model && `model ${row.model}`,
      `team ${row.team_id ?? "–"}`,
      `request ${row.request_id ?? "–"}`,
      `session ${row.session_id}`,
      `${row.prompt_tokens} prompt tokens, ${row.cached_tokens} of them cached`,
      `${row.generated_tokens} of at most ${row.token_limit} generated`,
      `running for ${duration(row.running_s)}`,
    ]
      .filter(Boolean)
      .join(" · "),
  );
}

list.addEventListener("pointerleave", () => {
  if (!list.contains(document.activeElement)) shown = null;
  showDetail();
});

list.addEventListener("keydown", (event) => {
  const from = cells.findIndex((cell) => cell.button === document.activeElement);
  const perLine = cells.filter((cell) => cell.item.offsetTop === cells[0].item.offsetTop).length;
  const target = {
    ArrowRight: from + 1,
    ArrowLeft: from - 1,
    ArrowDown: from + perLine,
    ArrowUp: from - perLine,
    Home: 0,
    End: cells.length - 1,
  }[event.key];
  if (from < 0 || target === undefined || !cells[target]) return;
  event.preventDefault();
  cells[from].button.tabIndex = -1;
  cells[target].button.tabIndex = 0;
  cells[target].button.focus();
});
