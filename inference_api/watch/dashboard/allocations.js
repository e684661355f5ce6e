// The allocation table: a server a line, with its load to edit, what it gets, and how that stands
// against its service levels. On narrow screens each line becomes a card, so roles are explicit.

import { bar, h } from "./dom.js";
import { decimal, number, percent } from "./format.js";
import { whyButton } from "./reasons.js";

const MOST_SHOWN = 100;
const FULL_SCALE = 1.25; // of a target, at the end of its bar
const LOAD_FIELDS = [
  ["arrivalRate", "Requests per minute", "req/min", "any"],
  ["avgInTokens", "Input tokens per request", "in", "1"],
  ["avgOutTokens", "Output tokens per request", "out", "1"],
];
const COLUMNS = [
  "Server",
  "Load",
  "Runs now",
  "Allocation",
  "ITL",
  "TTFT",
  "Utilisation",
  "Cost",
  "",
];
const LEGEND =
  "Runs now and Allocation: replicas × accelerator. ITL (between tokens) and TTFT (to the first " +
  "token): predicted means; the mark is the target. Utilisation: the busy share of a batch.";

/** Of `system` and `allocated`, as GET /state has them, and of the `answer` of the last solve if there
 * was one. `loads` is filled with what the user edits, by server name. */
export function allocationTable(view) {
  const body = h("tbody", { role: "rowgroup" });
  const more = h("p", { class: "quiet message" });
  const servers = view.system.serverData.servers;
  const fill = (wanted) => {
    const words = wanted.toLowerCase();
    const found = servers.filter((each) =>
      `${each.name} ${each.class} ${each.model}`.toLowerCase().includes(words),
    );
    body.replaceChildren(...found.slice(0, MOST_SHOWN).map((server) => line(server, view)));
    more.textContent =
      found.length > MOST_SHOWN ? `${found.length - MOST_SHOWN} more; filter to see them.` : "";
  };
  fill("");
  const filter = h("input", { type: "search", oninput: () => fill(filter.value) });
  return [
    servers.length > MOST_SHOWN
      ? h("label", { class: "field filter" }, "Filter servers", filter)
      : null,
    h("p", { class: "hint message" }, LEGEND),
    h(
      "table",
      { class: "allocations folds", role: "table" },
      h("caption", { class: "unseen" }, "Allocation of every server"),
      h(
        "thead",
        { role: "rowgroup" },
        h(
          "tr",
          { role: "row" },
          COLUMNS.map((name) =>
            h(
              "th",
              { role: "columnheader", scope: "col" },
              name || h("span", { class: "unseen" }, "Reasons"),
            ),
          ),
        ),
      ),
      body,
    ),
    more,
  ].filter(Boolean);
}

function line(server, { system, allocated, answer, loads }) {
  const target = targetOf(system, server);
  const allocation = server.desiredAlloc;
  const parts = partsOf(allocation);
  const has = parts.length > 0;
  const utilization = Math.max(...parts.map((part) => part.utilization ?? -1));
  const cell = (index, content, properties = {}) =>
    h("td", { role: "cell", "data-label": COLUMNS[index], ...properties }, content);
  return h(
    "tr",
    { role: "row", "data-server": server.name },
    h(
      "th",
      { role: "rowheader", scope: "row" },
      h("span", { class: "name" }, server.name),
      h("span", { class: "quiet small" }, `${server.class || "Free"} · ${server.model}`),
    ),
    cell(1, loadEditor(server, loads)),
    cell(2, [
      shape(server.currentAlloc),
      h("span", { class: "fault-text small" }, answer?.loadFaults[server.name] ?? ""),
    ]),
    cell(
      3,
      has
        ? [shape(allocation), h("span", { class: "quiet small" }, `batch ${allocation.maxBatch}`)]
        : noAllocation(allocated.includes(server.name), answer?.unallocated[server.name]),
    ),
    cell(4, has ? level(allocation.itlAverage, target?.["slo-itl"]) : "–"),
    cell(5, has ? level(allocation.ttftAverage, target?.["slo-ttft"]) : "–"),
    cell(
      6,
      utilization >= 0
        ? [
            h("span", { class: "reading-small" }, percent(utilization)),
            bar(utilization, { class: "neutral" }),
          ]
        : "–",
    ),
    cell(
      7,
      has
        ? [
            h("span", {}, `${number(totalCost(allocation))} ¢/h`),
            h("span", { class: "quiet small" }, difference(server)),
          ]
        : "–",
      { class: "number" },
    ),
    cell(8, whyButton(server)),
  );
}

function targetOf(system, server) {
  const owner = system.serviceClassData.serviceClasses.find(
    (each) => each.name === (server.class || "Free"),
  );
  return owner?.modelTargets.findLast((each) => each.model === server.model);
}

function shape(allocation) {
  const text = partsOf(allocation)
    .map((part) => `${part.numReplicas} × ${part.accelerator}`)
    .join(" + ");
  return h("span", { class: "shape" }, text || "nothing");
}

function noAllocation(isScaledToZero, reason) {
  if (isScaledToZero) return "scaled to zero";
  return h("span", { class: reason ? "fault-text" : "quiet" }, reason ?? "none");
}

/** Of all accelerators that a server runs on. */
export function totalCost(allocation) {
  return partsOf(allocation).reduce((sum, part) => sum + part.cost, 0);
}

/** In W, where the solve that made the allocation has said it. */
export function totalPower(allocation) {
  return partsOf(allocation).reduce((sum, part) => sum + (part.powerWatts ?? NaN), 0);
}

/** An allocation is its one part, unless it has several. */
export function partsOf(allocation) {
  return (allocation.parts ?? [allocation]).filter((part) => part.accelerator && part.numReplicas);
}

function difference(server) {
  const change = totalCost(server.desiredAlloc) - totalCost(server.currentAlloc);
  return change === 0 ? "no change" : `${change > 0 ? "+" : "−"}${number(Math.abs(change))}`;
}

/** A measured level on a scale that ends a quarter beyond its target. */
export function level(value_ms, target_ms) {
  if (!target_ms) {
    const value = h("span", { class: "reading-small" }, `${decimal(value_ms)} ms`);
    return [value, h("span", { class: "quiet small" }, "no target")];
  }
  const isMet = value_ms <= target_ms;
  const verdict = isMet ? "" : ", missed";
  return [
    h(
      "span",
      { class: "reading-small" },
      h("strong", {}, decimal(value_ms)),
      ` of ${decimal(target_ms)} ms${verdict}`,
    ),
    bar(value_ms / target_ms / FULL_SCALE, { class: isMet ? "slo met" : "slo missed" }),
  ];
}

function loadEditor(server, loads) {
  const load = loads.get(server.name) ?? server.currentAlloc.load;
  return h(
    "div",
    { class: "load" },
    LOAD_FIELDS.map(([key, label, unit, step]) => {
      const input = h("input", {
        type: "number",
        min: 0,
        step,
        required: load[key] !== undefined,
        placeholder: "unknown",
        value: load[key],
        name: key,
        "aria-label": `${label}, ${server.name}`,
      });
      input.addEventListener("input", () => {
        if (!input.checkValidity()) return;
        const edited = loads.get(server.name) ?? { ...server.currentAlloc.load };
        loads.set(server.name, { ...edited, [key]: input.valueAsNumber });
        input.classList.toggle("edited", input.valueAsNumber !== server.currentAlloc.load[key]);
      });
      return h("label", {}, input, h("span", { "aria-hidden": "true" }, unit));
    }),
  );
}
