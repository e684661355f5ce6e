// Conversations with the models that are served, and bare texts, by the OpenAI routes, streamed.

import { hasToken } from "./api.js";
import { Conversation } from "./conversation.js";
import { copyText, curl, python } from "./copying.js";
import { byId, h, setText } from "./dom.js";

const EMBEDDED_MODEL = "hearth-tiny";
const EXAMPLES = {
  // It is small, and knows these.
  embedded: [
    "Have you been to Paris, France?",
    "What is the capital of Kenya?",
    "Write a Python function that adds two numbers.",
    "How do I make a cup of tea?",
  ],
  other: [
    "Explain how a rainbow forms.",
    "Write a short poem about the sea.",
    "What should I see on a weekend in Lisbon?",
    "Write a Python function that finds the primes below a number.",
  ],
};
const PATHS = { chat: "/v1/chat/completions", completion: "/v1/completions" };

const panel = byId("playground-panel", HTMLElement);
const form = byId("playground", HTMLFormElement);
const prompt = byId("playground-prompt", HTMLTextAreaElement);
const settings = byId("playground-settings", HTMLDetailsElement);
const log = byId("playground-log", HTMLElement);
const examples = byId("playground-examples", HTMLElement);
const copied = byId("playground-copied", HTMLElement);
const status = byId("playground-status", HTMLElement);
const send = byId("playground-send", HTMLButtonElement);
const stop = byId("playground-stop", HTMLButtonElement);
const regenerate = byId("playground-regenerate", HTMLButtonElement);
const copiers = /** @type {const} */ ([
  [byId("playground-curl", HTMLButtonElement), curl],
  [byId("playground-python", HTMLButtonElement), python],
]);
const models = byId("playground-models", HTMLElement);
const model = byId("playground-model", HTMLSelectElement);

// Bare text has no turns: each prompt begins anew, and its answer is shown as it is.
const conversations = { chat: new Conversation(), completion: new Conversation() };
/** @type {AbortController | null} */
let running = null; // of the answer that streams
let follows = true; // the log shows its end, until somebody scrolls up

/** What the next prompt may go to; whoever has chosen keeps that. */
export function offerModels(names) {
  const chosen = model.value;
  if (names.join("\n") !== [...model.options].map((each) => each.value).join("\n")) {
    model.replaceChildren(...names.map((name) => h("option", { value: name }, name)));
    if (names.includes(chosen)) model.value = chosen;
  }
  models.hidden = names.length < 2;
  allowActions();
}

/** @returns {"chat" | "completion"} */
function kind() {
  return new FormData(form).get("kind") === "chat" ? "chat" : "completion";
}

function allowActions() {
  const { isEmpty } = conversations[kind()];
  send.disabled = !model.value || running !== null;
  stop.disabled = running === null;
  regenerate.disabled = send.disabled || isEmpty;
  for (const [button] of copiers) button.disabled = !model.value;
  examples.hidden = !isEmpty;
  const isOther = model.value && model.value !== EMBEDDED_MODEL;
  for (const each of examples.querySelectorAll("button")) {
    each.disabled = send.disabled;
    each.hidden = each.dataset.for !== (isOther ? "other" : "embedded");
  }
}

/** The body of a request, without what only this page needs. */
function bodyOf(text, isRepeated) {
  const fields = new FormData(form);
  const seed = fields.get("seed");
  const system = fields.get("system");
  const messages = [
    ...(system ? [{ role: "system", content: system }] : []),
    ...conversations.chat.turns(isRepeated),
    { role: "user", content: text },
  ];
  return {
    model: model.value,
    ...(kind() === "chat" ? { messages } : { prompt: text }),
    max_tokens: Number(fields.get("max_tokens")),
    temperature: Number(fields.get("temperature")),
    top_p: Number(fields.get("top_p")),
    ...(seed !== "" && { seed: Number(seed) }),
    stream: true,
  };
}

/** Tells what is wrong with the settings; they are opened for that. */
function areSettingsValid() {
  const inputs = [...settings.querySelectorAll("input")];
  if (inputs.some((each) => !each.validity.valid)) settings.open = true;
  return inputs.every((each) => each.reportValidity());
}

async function run(text) {
  if (running || !model.value || !areSettingsValid()) return;
  running = new AbortController();
  const at = kind();
  const conversation = conversations[at];
  if (at === "completion") conversation.clear();
  const body = bodyOf(text, false);
  const options = { isMarkdown: at === "chat", namesModel: !models.hidden };
  const answer = conversation.ask(text, options);
  const focused = document.activeElement;
  copied.hidden = true;
  follows = true;
  setText(status, "");
  allowActions();
  if (focused !== prompt) stop.focus(); // a disabled or hidden button loses the focus
  const told = await answer.stream(PATHS[at], body, running.signal);
  running = null;
  const wasStopFocused = document.activeElement === stop;
  allowActions();
  if (wasStopFocused) send.focus();
  setText(status, told);
}

function sendPrompt() {
  if (running || !model.value || !prompt.reportValidity() || !areSettingsValid()) return;
  const text = prompt.value;
  prompt.value = "";
  run(text);
}

function answerAgain() {
  if (!areSettingsValid()) return;
  const conversation = conversations[kind()];
  const text = conversation.lastPrompt;
  conversation.takeBack();
  run(text);
}

function begin() {
  running?.abort();
  conversations[kind()].clear();
  copied.hidden = true;
  allowActions();
  setText(status, "New conversation.");
  prompt.focus();
}

/** Copies the request that Send would make, or without a prompt the last one. */
async function copyAs(button, written) {
  const isRepeated = prompt.value === "" && !conversations[kind()].isEmpty;
  if (!(isRepeated || prompt.reportValidity()) || !areSettingsValid()) return;
  const text = isRepeated ? conversations[kind()].lastPrompt : prompt.value;
  const body = bodyOf(text, isRepeated);
  const request = { origin: location.origin, path: PATHS[kind()], body, withToken: hasToken() };
  await copyText(button, written(request), copied);
  setText(status, button.textContent);
}

function showKind() {
  log.replaceChildren(conversations[kind()].element, examples);
  copied.hidden = true;
  allowActions();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  sendPrompt();
});
form.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.isComposing) return; // Enter also ends what an input method composes
  const isPrompt = event.target === prompt && !event.shiftKey;
  if (!isPrompt && !event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  sendPrompt();
});
panel.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
for (const radio of form.querySelectorAll("[name=kind]"))
  radio.addEventListener("change", showKind);
for (const [button, written] of copiers)
  button.addEventListener("click", () => copyAs(button, written));
stop.addEventListener("click", () => running?.abort());
regenerate.addEventListener("click", answerAgain);
byId("playground-new", HTMLButtonElement).addEventListener("click", begin);
for (const [whose, texts] of Object.entries(EXAMPLES)) {
  const button = (text) =>
    h("button", { type: "button", "data-for": whose, onclick: () => run(text) }, text);
  examples.append(...texts.map(button));
}
model.addEventListener("change", allowActions);
log.addEventListener("scroll", () => {
  follows = log.scrollHeight - log.scrollTop - log.clientHeight < 32;
});
const grown = new ResizeObserver(() => {
  if (follows) log.scrollTop = log.scrollHeight;
});
for (const { element } of Object.values(conversations)) grown.observe(element);
showKind();
