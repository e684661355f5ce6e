// The experts of a bundle: what each is doing, what it takes, and having it loaded or unloaded.

import { postJson } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { bytes, clock, count } from "./format.js";

const panel = byId("bundle", HTMLElement);
const summary = byId("bundle-summary", HTMLElement);
const memory = byId("bundle-memory", HTMLElement);
const list = byId("experts", HTMLElement);
const status = byId("bundle-status", HTMLElement);
const fault = byId("bundle-fault", HTMLElement);

/** @type {Map<string, ReturnType<typeof makeCard>>} */
const cards = new Map(); // by name; they stay in place, so that nobody loses the focus

/** `bundle` as in GET /bundle; null where none is served, or nothing is known of it yet. */
export function showBundle(bundle) {
  panel.hidden = !bundle;
  if (!bundle) return;
  const { limits, used } = bundle;
  setText(
    summary,
    `${bytes(used.fast_memory)} of ${bytes(limits.fast_memory_limit)} in use, ` +
      `${count(used.rows, "row")} busy, ${used.queue} of ${limits.max_queue} waiting`,
  );
  showMemory(bundle);
  for (const expert of bundle.experts) showExpert(expert, bundle.loading);
}

/** A part for each expert that is in memory, as long as its share of the limit. Weights that
 * several have are there once, so the parts are a little shorter then. */
function showMemory({ limits, used, experts }) {
  const taken = experts.map(bytesOf);
  const sum = taken.reduce((all, each) => all + each, 0);
  const scale = sum ? used.fast_memory / sum / limits.fast_memory_limit : 0;
  memory.replaceChildren(
    ...experts.map(({ name, state }, i) => {
      const part = h("span", { "data-phase": state, title: `${name}: ${bytes(taken[i])}` });
      part.hidden = !taken[i];
      part.style.setProperty("inline-size", `${100 * taken[i] * scale}%`);
      return part;
    }),
  );
}

/** What an expert runs on, as the card of a single model tells it. */
export function describeExpert(name, figures) {
  cards.get(name)?.facts.replaceChildren(...figures);
}

function showExpert(expert, next) {
  const card = cards.get(expert.name) ?? makeCard(expert);
  cards.set(expert.name, card);
  const { figures, state, reason } = card;
  const isNext = expert.name === next && expert.state !== "loading" && expert.state !== "packing";
  state.dataset.phase = expert.state;
  setText(state, expert.state.replace("_", " ") + (isNext ? ", next" : ""));
  setText(figures.Rows, `${expert.running} of ${expert.rows.max}`);
  setText(figures.Waiting, String(expert.queue));
  setText(figures.Memory, bytesOf(expert) ? bytes(bytesOf(expert)) : "none");
  setText(figures["Last used"], expert.last_used === null ? "never" : clock(expert.last_used));
  setText(figures.Switches, String(expert.switches));
  reason.hidden = !expert.reason;
  setText(reason, expert.reason);
}

function makeCard({ name, description, pinned }) {
  const names = ["Rows", "Waiting", "Memory", "Last used", "Switches"];
  const figures = Object.fromEntries(names.map((each) => [each, h("dd")]));
  const facts = h("dl", { class: "figures inline facts" });
  const state = h("span", { class: "pill" });
  const reason = h("p", { class: "fault", hidden: true });
  const at = encodeURIComponent(name);
  const actions = [
    ["Load", `load/${at}`],
    ["Unload", `unload/${at}`],
    ["Drain", `unload/${at}?drain`],
  ];
  const buttons = actions
    .slice(0, pinned ? 1 : 3)
    .map(([word, path]) =>
      h(
        "button",
        { type: "button", "aria-label": `${word} ${name}`, onclick: () => ask(path) },
        word,
      ),
    );
  const item = h(
    "li",
    { "data-expert": name },
    h(
      "p",
      { class: "title" },
      h("strong", { title: description || null }, name),
      state,
      pinned ? h("span", { class: "quiet" }, "pinned") : null,
    ),
    h("div", { class: "actions" }, buttons),
    h(
      "dl",
      { class: "figures inline" },
      names.map((each) => h("div", {}, h("dt", {}, each), figures[each])),
    ),
    facts,
    reason,
  );
  list.append(item);
  return { figures, facts, state, reason };
}

async function ask(path) {
  fault.hidden = true;
  setText(status, "");
  try {
    const expert = await (await postJson(`/bundle/${path}`, {})).json();
    setText(status, `${expert.name}: ${expert.state.replace("_", " ")}`);
    showExpert(expert, null);
  } catch (error) {
    fault.hidden = false;
    setText(fault, error.message);
  }
}

function bytesOf(expert) {
  const { weights, other, cache } = expert.bytes;
  return weights + other + cache;
}
