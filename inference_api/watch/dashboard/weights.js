// The weights view: searches for a partition over machines, and how far the one chosen has come.

import { getJson } from "./api.js";
import { bar, byId, h, setText } from "./dom.js";
import { count, number, percent } from "./format.js";
import { poll } from "./poll.js";
import { searchChart } from "./search_chart.js";

const PERIOD_MS = 5000;
const MOST_TRIALS = 1000; // the last ones, of a session
const MOST_SESSIONS = 1000;

const view = byId("view-weights", HTMLElement);
const root = byId("weights-body", HTMLElement);
const fault = byId("weights-fault", HTMLElement);

let chosen = ""; // the session id in the address, or none
let shown = ""; // what is on the screen, as JSON

/** Called whenever the view comes up, with the session that the address names. */
export function showWeights(sessionId) {
  chosen = sessionId;
  return refresh();
}

async function refresh() {
  if (view.hidden) return;
  try {
    const { sessions } = await getJson(`/weights/sessions?limit=${MOST_SESSIONS}`);
    const session = sessions.find((each) => each.session_id === chosen) ?? sessions[0];
    const overview = session && (await loadOverview(session));
    fault.hidden = true;
    render(sessions, overview);
  } catch (error) {
    fault.hidden = false;
    setText(fault, error.message);
  }
}

poll(refresh, PERIOD_MS, () => {});

function pathOf(session) {
  return `/weights/sessions/${encodeURIComponent(session.session_id)}`;
}

function loadOverview(session) {
  const offset = Math.max(0, session.num_observations - MOST_TRIALS);
  return getJson(`${pathOf(session)}?offset=${offset}&limit=${MOST_TRIALS}`);
}

/** Nothing is touched unless something changed; the focus stays on the link it was on. */
function render(sessions, overview) {
  const text = JSON.stringify([sessions, overview]);
  if (text === shown) return;
  shown = text;
  const focused = root.contains(document.activeElement)
    ? document.activeElement?.getAttribute("href")
    : null;
  root.replaceChildren(
    overview
      ? h("div", { class: "sessions" }, list(sessions, overview), detail(overview))
      : emptyState(),
  );
  if (focused)
    [...root.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
}

function emptyState() {
  return h(
    "section",
    { class: "panel empty" },
    h("h2", {}, "No search yet"),
    h(
      "p",
      { class: "quiet" },
      "The weights search finds out by measuring how to split a model over unequal machines. Get " +
        "weights with POST /weights_gen, measure them, and report the result with " +
        "POST /weights_update. The search then appears here.",
    ),
  );
}

function list(sessions, overview) {
  return h(
    "nav",
    { class: "panel", "aria-label": "Sessions" },
    h(
      "header",
      { class: "panel-head" },
      h("h2", {}, "Sessions"),
      h("p", { class: "quiet" }, String(sessions.length)),
    ),
    h(
      "ul",
      { class: "session-list" },
      sessions.map((session) =>
        h(
          "li",
          {},
          h(
            "a",
            {
              href: `#weights/${encodeURIComponent(session.session_id)}`,
              "aria-current": session.session_id === overview.session_id ? "true" : null,
            },
            h("span", { class: "name" }, session.session_id),
            h(
              "span",
              { class: "quiet small" },
              `${count(session.number_of_nodes, "node")}, ` +
                count(session.num_observations, "trial"),
            ),
          ),
        ),
      ),
    ),
  );
}

function detail(overview) {
  const { convergence, noise_aware_best: best } = overview;
  return h(
    "section",
    { class: "panel", "aria-labelledby": "session-title" },
    h(
      "header",
      { class: "panel-head" },
      h("h2", { id: "session-title" }, overview.session_id),
      h(
        "p",
        { class: "verdict" },
        h("strong", {}, convergence.converged ? "Converged" : "Searching"),
        convergence.reason && `: ${convergence.reason}`,
      ),
    ),
    h(
      "dl",
      { class: "figures" },
      figure("Best after noise", number(best.performance_metric), interval(best.interval_90)),
      figure(
        "Best single trial",
        number(overview.best.performance_metric),
        `${overview.direction}d`,
      ),
      figure("Trials", String(overview.num_observations), ""),
      figure("Model", overview.model.replaceAll("_", " "), ""),
    ),
    searchChart(overview),
    nodes(overview),
  );
}

function figure(name, value, note) {
  return h(
    "div",
    {},
    h("dt", {}, name),
    h("dd", {}, value, h("span", { class: "quiet small" }, note)),
  );
}

function interval([low, high]) {
  if (low === null || high === null) return "no bound yet";
  return `90 % within ${number(low)} to ${number(high)}`;
}

/** The share of each node in the best partition, between the bounds it has. */
function nodes({
  noise_aware_best: best,
  min_weightings: least,
  max_weightings: most,
  num_layers,
}) {
  return h(
    "table",
    { class: "plain-table nodes" },
    h("caption", { class: "unseen" }, "Best partition after accounting for noise"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        ["Node", "Share of the model", "", "Bounds"].map((name) =>
          h("th", { scope: "col" }, name || h("span", { class: "unseen" }, "As a bar")),
        ),
      ),
    ),
    h(
      "tbody",
      {},
      best.weights.map((share, node) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, String(node)),
          h(
            "td",
            {},
            num_layers
              ? `${percent(share)}, ${number(share * num_layers)} of ${num_layers} layers`
              : percent(share),
          ),
          h("td", { class: "wide" }, bar(share)),
          h("td", {}, `${percent(least[node])} to ${percent(most[node])}`),
        ),
      ),
    ),
  );
}
