// What serves each model: read once they are loaded, since it does not change while they are. How
// much of their KV caches is in use comes with every state.

import { getJson } from "./api.js";
import { describeExpert } from "./bundle.js";
import { byId, h, setText } from "./dom.js";
import { bytes, count, number } from "./format.js";

const panel = byId("models", HTMLElement);
const title = byId("models-title", HTMLElement);
const cards = byId("model-cards", HTMLElement);
const resident = h("dd"); // of the process, beside the first model

let known = ""; // of which models the cards are
/** @type {Map<string, HTMLElement>} */
const uses = new Map(); // by model: where to tell what its KV cache holds

/** The experts of a bundle have a panel of their own, and are described there. */
export async function showModels({ server, bundle, kv_cache }) {
  panel.hidden = !server.models.length || bundle !== null;
  if (!server.models.length) return;
  setText(resident, server.resident_bytes === null ? "–" : bytes(server.resident_bytes));
  const models = server.models.join("\n");
  if (models !== known) {
    const served = await getJson("/dashboard/models");
    known = models;
    uses.clear();
    setText(title, served.length === 1 ? "Model" : "Models");
    if (bundle) for (const each of served) describeExpert(each.name, figures(each));
    else cards.replaceChildren(...served.map(card));
  }
  for (const [name, use] of uses) setText(use, held(kv_cache[name]));
}

/** Cached is what no row holds, for prompts that begin alike. A model that is not in memory has no
 * pages. */
function held(pages) {
  if (!pages) return "–";
  const { held_pages, cached_pages, free_pages, page_tokens } = pages;
  const used = held_pages + cached_pages;
  const cached = cached_pages ? ` (${number(cached_pages * page_tokens)} cached)` : "";
  const all = count((used + free_pages) * page_tokens, "token");
  return `${number(used * page_tokens)}${cached} of ${all}`;
}

function card(model, index) {
  return h(
    "dl",
    { class: "figures inline" },
    figure("Name", model.name),
    figures(model),
    index ? null : h("div", {}, h("dt", {}, "Process"), resident),
  );
}

function figures({ name, user_rows, context_tokens, speculation, facts }) {
  const room = `${count(user_rows, "row")} of ${count(context_tokens, "token")}`;
  return [
    ...(facts ? told(facts) : [figure("Family", "mock, an echo")]),
    figure("Context", room),
    ...(facts ? [figure("Cache in use", [use(name)])] : []),
    figure("Speculation", speculation.join(", ") || "off"),
  ];
}

function told(facts) {
  const { family, num_parameters, num_layers, device, threads, kernels, dtype } = facts;
  const millions = `${number(num_parameters / 1e6)} million parameters`;
  const cores = device === "cpu" ? `, ${count(threads, "thread")}` : "";
  const form = facts.quantization === "none" ? dtype : facts.quantization;
  return [
    figure("Family", `${family}, ${millions}, ${count(num_layers, "layer")}`),
    figure("Device", device + cores),
    figure("Kernels", kernels),
    figure("Weights", `${form}, ${bytes(facts.weights_bytes)}`),
    figure("KV cache", `${facts.kv_cache_dtype}, ${bytes(facts.cache_bytes)}`),
  ];
}

function use(name) {
  const element = h("span");
  uses.set(name, element);
  return element;
}

function figure(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}
