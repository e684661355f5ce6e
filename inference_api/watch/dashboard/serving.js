// The first view: what the server is, its charts, drafts, experts and rows, from one polled state.

import { showBundle } from "./bundle.js";
import { Chart } from "./chart.js";
import { byId, setText } from "./dom.js";
import { count, duration, number } from "./format.js";
import { History } from "./history.js";
import { showModels } from "./model_card.js";
import { showRequests } from "./requests.js";
import { showRows } from "./rows.js";
import { showSpeculation } from "./speculation.js";

const history = new History();
const charts = {
  throughput: new Chart("Throughput", ["first", "second"], true),
  rows: new Chart("Rows and queue", ["first", "second"], true),
  ttft: new Chart("Time to first token", ["first"]),
  itl: new Chart("Inter-token latency", ["first"]),
};
byId("charts", HTMLElement).prepend(...Object.values(charts).map((chart) => chart.element));

const model = byId("server-model", HTMLElement);
const phase = byId("server-phase", HTMLElement);
const notice = byId("notice", HTMLElement);
const summary = byId("rows-summary", HTMLElement);

/** Also of what is asked for besides the state, once it is there. */
export async function showServer(state) {
  history.push(state);
  setPhase(state.server.phase, state.server.reason);
  const { models } = state.server;
  setText(model, state.bundle ? count(models.length, "expert") : models.join(", "));
  const busy = busyRows(state);
  setText(
    summary,
    `${busy} of ${state.rows.length} busy, ${state.queue.waiting} waiting` +
      (state.queue.paused ? `, ${state.queue.paused} paused` : "") +
      (models.length === 1 ? `, ${count(state.server.context_tokens, "token")} each` : ""),
  );
  showRows(state);
  showSpeculation(history);
  showBundle(state.bundle);
  showCharts(state, busy);
  await Promise.all([showModels(state), showRequests(state)]);
}

export function setPhase(name, reason) {
  phase.dataset.phase = name;
  setText(phase, name);
  notice.hidden = !reason;
  setText(notice, reason ?? "");
}

function showCharts(state, busy) {
  const { range } = history;
  const decoded = history.rates((each) => each.totals.generated_tokens);
  const prefilled = history.rates((each) => each.totals.prefilled_tokens);
  charts.throughput.update({
    value: number(decoded.at(-1)?.[1] ?? 0),
    unit: "tokens/s",
    note: `prefill ${number(prefilled.at(-1)?.[1] ?? 0)} tokens/s`,
    lines: [decoded, prefilled],
    range,
    scale: number,
  });
  charts.rows.update({
    value: number(busy),
    unit: `of ${state.rows.length} busy`,
    note: `queue ${state.queue.waiting} of ${state.queue.capacity}`,
    lines: [history.levels(busyRows), history.levels((each) => each.queue.waiting)],
    range,
    scale: number,
    ceiling: Math.max(state.rows.length, ...history.states.map((each) => each.queue.waiting)),
  });
  for (const name of ["ttft", "itl"]) {
    const [median_s, p95_s] = history.quantiles(name, [0.5, 0.95]);
    const [value, unit = ""] = duration(median_s).split(" ");
    charts[name].update({
      value,
      unit: `${unit} median`,
      note: p95_s === null ? "nothing in the last minute" : `95th percentile ${duration(p95_s)}`,
      lines: [history.means(name)],
      range,
      scale: duration,
    });
  }
}

function busyRows(state) {
  return state.rows.filter(Boolean).length;
}
