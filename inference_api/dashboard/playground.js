// One prompt at a time to the OpenAI routes, streamed; timed here, as a client sees it.

import { ApiError, hasToken, postJson } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { count, duration, number } from "./format.js";
import { events } from "./sse.js";

const form = byId("playground", HTMLFormElement);
const answer = byId("playground-answer", HTMLElement);
const status = byId("playground-status", HTMLElement);
const send = byId("playground-send", HTMLButtonElement);
const stop = byId("playground-stop", HTMLButtonElement);
const copy = byId("playground-curl", HTMLElement);
const figures = Object.fromEntries(
  [...document.querySelectorAll("[data-figure]")].map((each) => [
    each.getAttribute("data-figure"),
    each,
  ]),
);
const COPIED_MS = 1500;

const models = byId("playground-models", HTMLElement);
const model = byId("playground-model", HTMLSelectElement);
const answered = byId("playground-answered", HTMLElement);
/** @type {AbortController | null} */
let running = null; // the AbortController of the answer that streams

/** What the next prompt may go to; whoever has chosen keeps that. */
export function offerModels(names) {
  const chosen = model.value;
  if (names.join("\n") !== [...model.options].map((each) => each.value).join("\n")) {
    model.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    if (names.includes(chosen)) model.value = chosen;
  }
  models.hidden = answered.hidden = names.length < 2;
  allowSending();
}

function allowSending() {
  send.disabled = !model.value || running !== null;
}

function route() {
  return new FormData(form).get("kind") === "chat" ? "/v1/chat/completions" : "/v1/completions";
}

/** The body of a request, without what only this page needs. */
function body() {
  const fields = new FormData(form);
  const prompt = fields.get("prompt");
  const seed = fields.get("seed");
  return {
    model: model.value,
    ...(fields.get("kind") === "chat"
      ? { messages: [{ role: "user", content: prompt }] }
      : { prompt }),
    max_tokens: Number(fields.get("max_tokens")),
    temperature: Number(fields.get("temperature")),
    ...(seed !== "" && { seed: Number(seed) }),
    stream: true,
  };
}

async function run() {
  if (running || !form.reportValidity()) return;
  running = new AbortController();
  const { signal } = running;
  const timing = { sent_ms: performance.now(), first_ms: null, last_ms: null, tokens: 0 };
  begin();
  /** @type {string | null} */
  let finish = "stopped";
  try {
    const streamed = {
      ...body(),
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
    const response = await postJson(route(), streamed, { signal });
    finish = await read(response, timing);
  } catch (error) {
    if (error.name !== "AbortError") finish = fail(error);
  } finally {
    running = null;
    end(finish, timing);
  }
}

/** Appends the pieces as they come; returns the finish reason. */
async function read(response, timing) {
  /** @type {string | null} */
  let finish = null;
  for await (const data of events(response)) {
    if (data === "[DONE]") return finish;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.status_code, chunk.error.message);
    setText(figures.model, chunk.model);
    const choice = chunk.choices[0];
    const piece = choice?.delta?.content ?? choice?.text ?? "";
    timing.tokens = chunk.usage?.completion_tokens ?? timing.tokens;
    if (piece) {
      timing.last_ms = performance.now();
      timing.first_ms ??= timing.last_ms;
      answer.append(piece);
      answer.scrollTop = answer.scrollHeight;
    }
    finish = choice?.finish_reason ?? finish;
    showFigures(timing);
  }
  throw new ApiError(0, "The stream broke off before its end.");
}

function begin() {
  answer.replaceChildren();
  answer.setAttribute("aria-busy", "true");
  send.disabled = true;
  stop.disabled = false;
  setText(status, "");
  for (const figure of Object.values(figures)) setText(figure, "–");
}

function end(finish, timing) {
  answer.setAttribute("aria-busy", "false");
  allowSending();
  if (document.activeElement === stop) send.focus(); // a disabled button loses the focus
  stop.disabled = true;
  showFigures(timing);
  setText(figures.finish, finish);
  setText(status, `Answer finished, ${finish}: ${count(timing.tokens, "token")}.`);
}

function fail(error) {
  answer.append(h("p", { class: "fault", role: "alert" }, error.message));
  return "error";
}

function showFigures({ sent_ms, first_ms, last_ms, tokens }) {
  if (first_ms === null) return;
  setText(figures.ttft, duration((first_ms - sent_ms) / 1000));
  setText(figures.tokens, number(tokens));
  const after_s = (last_ms - first_ms) / 1000;
  setText(figures.rate, tokens > 1 && after_s > 0 ? number((tokens - 1) / after_s) : "–");
}

/** The same request for a shell. A token is named, never shown. */
export function curl(origin, path, content, withToken) {
  const quoted = JSON.stringify(content).replaceAll("'", String.raw`'\''`);
  const token = withToken ? ' -H "Authorization: Bearer $HEARTH_TOKEN"' : "";
  return `curl -N ${origin}${path}${token} -H 'Content-Type: application/json' -d '${quoted}'`;
}

async function copyCurl() {
  const text = curl(location.origin, route(), body(), hasToken());
  try {
    await navigator.clipboard.writeText(text);
    tell("Copied");
  } catch {
    // Pages from another machine without TLS have no clipboard: show it, selected, instead.
    answer.replaceChildren(text);
    getSelection()?.selectAllChildren(answer);
    tell("Select and copy");
  }
}

function tell(text) {
  setText(copy, text);
  setText(status, text);
  setTimeout(() => setText(copy, "Copy as curl"), COPIED_MS);
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  if (event.key === "Escape") running?.abort();
});
stop.addEventListener("click", () => running?.abort());
copy.addEventListener("click", copyCurl);
