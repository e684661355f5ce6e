// A search on this machine's own ranks: start, how far it is, stop. Its session appears as any other.

import { getJson, postJson, request } from "./api.js";
import { bar, byId, setText } from "./dom.js";
import { poll } from "./poll.js";

const PATH = "/weights/demo";
const PERIOD_MS = 2000;
const MAX_TRIALS = 8;
const WORDS = {
  running: "The ranks are starting.",
  stopping: "Stopping.",
  stopped: "Stopped.",
  ended: "Done.",
  failed: "The search failed; its output says why.",
};

const view = byId("view-weights", HTMLElement);
const start = byId("demo-start", HTMLButtonElement);
const stop = byId("demo-stop", HTMLButtonElement);
const status = byId("demo-status", HTMLElement);
const progress = byId("demo-progress", HTMLElement);
const fault = byId("demo-fault", HTMLElement);
const output = byId("demo-output", HTMLElement);
const lines = byId("demo-lines", HTMLElement);

/** Called whenever the view comes up. */
export async function showDemoSearch() {
  if (!view.hidden) await tell(async () => show(await getJson(PATH)));
}

poll(showDemoSearch, PERIOD_MS, () => {});

start.addEventListener("click", () =>
  tell(async () => {
    const state = await (await postJson(PATH, { max_trials: MAX_TRIALS })).json();
    location.hash = `#weights/${encodeURIComponent(state.session_id)}`;
    show(state);
    stop.focus();
  }),
);

stop.addEventListener("click", () =>
  tell(async () => {
    show(await (await request(PATH, { method: "DELETE" })).json());
    start.focus();
  }),
);

async function tell(work) {
  try {
    await work();
    fault.hidden = true;
  } catch (error) {
    fault.hidden = false;
    setText(fault, error.message);
  }
}

/** Buttons are not disabled while they have the focus, which would be lost. */
function show({ status: now, trials, max_trials, lines: printed }) {
  const runs = now === "running" || now === "stopping";
  start.ariaDisabled = String(runs);
  start.classList.toggle("primary", !runs);
  stop.disabled = now !== "running" && document.activeElement !== stop;
  const counted = `${trials} of at most ${max_trials} trials`;
  setText(status, now === "idle" ? "" : trials ? `${WORDS[now]} ${counted}.` : WORDS[now]);
  if (now === "running" && trials) setText(status, `${counted}.`);
  progress.hidden = !runs;
  progress.replaceChildren(bar(trials / max_trials));
  const text = printed.join("\n");
  output.hidden = !text;
  if (lines.textContent === text) return;
  lines.textContent = text;
  output.scrollTop = output.scrollHeight;
}
