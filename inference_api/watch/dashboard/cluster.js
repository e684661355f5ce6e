// The cluster's view: what its controller sees, plans and has decided, read through this server.

import { level } from "./allocations.js";
import { getJson } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { clock, count, decimal, duration, number } from "./format.js";
import { poll } from "./poll.js";
import { foldingTable, small } from "./table.js";

const PERIOD_MS = 2000;
const MOST_LINES = 200; // of a table
const SERVER = ["Server", "Plan", "Replicas", "Arrivals", "TTFT", "ITL", "Decision"];
const DECISION = ["Cycle", "Server", "Arrivals", "Plan", "Cost", "Decision"];
const REPLICA = ["Replica", "Server", "Accelerator", "Rows", "State", "Address"];

export const hasCluster = document.documentElement.dataset.cluster === "yes";

const view = byId("view-cluster", HTMLElement);
const summary = byId("cluster-summary", HTMLElement);
const fault = byId("cluster-fault", HTMLElement);
const tables = ["servers", "decisions", "replicas"].map((name) =>
  byId(`cluster-${name}`, HTMLElement),
);

let shown = ""; // what the tables say, as JSON

/** Called whenever the view comes up. */
export async function showCluster() {
  if (view.hidden) return;
  try {
    const { age_s, state } = await getJson("/dashboard/cluster");
    setText(summary, summaryOf(state, age_s));
    tell(state.fault || state.cycle?.fault || "");
    render(state);
  } catch (error) {
    tell(error.message);
  }
}

if (hasCluster) {
  byId("cluster-link", HTMLElement).hidden = false;
  poll(showCluster, PERIOD_MS, () => {});
}

function tell(text) {
  fault.hidden = !text;
  setText(fault, text);
}

function summaryOf({ replicas, cycle }, age_s) {
  const ready = replicas.filter((each) => each.state === "ready").length;
  const last = cycle
    ? `cycle ${cycle.cycle} at ${at(cycle)}, ${number(cycle.cost)} ¢/h`
    : "no cycle yet";
  return `${ready} of ${count(replicas.length, "replica")} ready · ${last} · seen ${duration(age_s)} ago`;
}

/** Nothing is touched unless something changed. */
function render(state) {
  const text = JSON.stringify(state);
  if (text === shown) return;
  const [servers, decisions, replicas] = tables;
  servers.replaceChildren(table("Servers", SERVER, serverLines(state)));
  decisions.replaceChildren(table("Decisions, newest first", DECISION, decisionLines(state)));
  replicas.replaceChildren(table("Replicas", REPLICA, state.replicas.map(replicaLine)));
  shown = text;
}

function table(caption, columns, lines) {
  if (!lines.length) return h("p", { class: "quiet" }, "none yet");
  return foldingTable(caption, columns, lines.slice(0, MOST_LINES));
}

function serverLines({ servers, cycle, unplaced }) {
  return Object.entries(servers).map(([name, server]) => {
    const seen = cycle?.servers[name];
    const states = Object.entries(server.replicas).map(([state, number]) => `${number} ${state}`);
    const lacking = unplaced.filter((each) => each.server === name);
    return [
      name,
      planned(server.plan),
      [
        states.join(", ") || "none",
        ...lacking.map(({ replicas, why }) => bad(`${replicas} unplaced: ${why}`)),
      ],
      [arrivals(seen), held(seen, "arrivals_per_minute")],
      latency(seen, "ttft_ms", server.target["slo-ttft"]),
      latency(seen, "itl_ms", server.target["slo-itl"]),
      decided(seen),
    ];
  });
}

function decisionLines({ decisions = [] }) {
  return decisions.flatMap((cycle) => {
    const when = () => [String(cycle.cycle), small(at(cycle))];
    if (cycle.fault) return [[when(), "–", "–", "–", "–", bad(cycle.fault)]];
    return Object.entries(cycle.servers).map(([name, seen]) => [
      when(),
      name,
      arrivals(seen),
      planned(seen.plan),
      `${number(cycle.cost)} ¢/h`,
      decided(seen),
    ]);
  });
}

function replicaLine({ name, server, accelerator, user_rows, state, why, url }) {
  const told = why ? bad(`${state}: ${why}`) : state;
  return [name, server, accelerator, String(user_rows), told, url ?? "–"];
}

function planned(groups) {
  const there = groups.filter((group) => group.replicas > 0);
  const texts = there.map(
    ({ replicas, accelerator, user_rows }) => `${replicas} × ${accelerator}, ${user_rows} rows`,
  );
  return texts.join("; ") || "none";
}

function arrivals(seen) {
  return seen?.arrived_per_minute == null ? "–" : `${number(seen.arrived_per_minute)} /min`;
}

function latency(seen, name, target) {
  const measured = seen?.measured[name];
  const predicted = small(`predicted ${decimal(seen?.predicted[name])} ms`);
  if (measured == null) return ["–", target ? small(`level ${number(target)} ms`) : predicted];
  return [...level(measured, target), predicted, held(seen, name)];
}

/** How many of the intervals that were forecast before a cycle held, and how wide they were. */
function held(seen, name) {
  const score = seen?.scores?.[name];
  if (!score) return "";
  const width = number(100 * score.half_width_ratio);
  return small(`${score.held} of ${score.judged} forecasts held, ± ${width} %`);
}

function decided(seen) {
  if (!seen) return "–";
  if (seen.held) return seen.held;
  const decision = seen.has_changed ? h("strong", {}, "changed") : "unchanged";
  if (seen.unmet) return [decision, small(`for longer levels: ${seen.unmet}`)];
  return seen.is_short ? [decision, small("fewer than its load needs")] : decision;
}

function at(cycle) {
  return clock(Date.parse(cycle.at) / 1000);
}

function bad(text) {
  return h("span", { class: "fault-text" }, text);
}
