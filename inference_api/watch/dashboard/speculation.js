// What drafts brought over the last minute, of each model that has drafted since its start.

import { byId, h } from "./dom.js";
import { number, percent } from "./format.js";

const panel = byId("speculation", HTMLElement);
const figures = byId("speculation-figures", HTMLElement);

export function showSpeculation(history) {
  const models = Object.entries(history.latest.speculation)
    .filter(([, totals]) => totals.drafted_tokens > 0)
    .map(([model]) => model);
  panel.hidden = !models.length;
  figures.replaceChildren(...models.map((model) => line(history, model)));
}

function line(history, model) {
  const gained = (name) => history.gained((state) => state.speculation[model][name]);
  return h(
    "dl",
    { class: "figures inline" },
    figure("Model", model),
    figure(
      "Drafted tokens accepted",
      percent(ratio(gained("accepted_tokens"), gained("drafted_tokens"))),
    ),
    figure("Tokens per step", number(ratio(gained("generated_tokens"), gained("decoded_rows")))),
  );
}

function figure(name, value) {
  return h("div", {}, h("dt", {}, name), h("dd", {}, value));
}

function ratio(part, whole) {
  return whole > 0 ? part / whole : null;
}
