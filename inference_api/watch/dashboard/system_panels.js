// What a system is made of, beside its allocation: cards, accelerators, service levels.

import { partsOf } from "./allocations.js";
import { bar, h } from "./dom.js";
import { number } from "./format.js";

export function systemPanels(system) {
  return [
    panel("Cards", cards(system)),
    panel("Accelerators", accelerators(system)),
    panel("SLOs", levels(system)),
  ];
}

function panel(title, content) {
  return h(
    "section",
    { class: "panel" },
    h("header", { class: "panel-head" }, h("h2", {}, title)),
    content,
  );
}

function cards(system) {
  const used = cardsUsed(system);
  return h(
    "ul",
    { class: "cards" },
    system.capacityData.count.map(({ type, count }) => {
      const taken = used.get(type) ?? 0;
      const text = `${number(taken)} of ${number(count)} used`;
      return h(
        "li",
        {},
        h("span", {}, type),
        h("span", { class: "quiet" }, text),
        bar(taken / (count || 1), { class: "neutral" }),
      );
    }),
  );
}

/** By type: what all allocations take. A replica takes whole units, a unit several cards. */
function cardsUsed(system) {
  const accelerators = new Map(
    system.acceleratorData.accelerators.map((each) => [each.name, each]),
  );
  const used = new Map();
  for (const server of system.serverData.servers) {
    for (const part of partsOf(server.desiredAlloc)) {
      const accelerator = accelerators.get(part.accelerator);
      const perf = system.modelData.models.find(
        (each) => each.name === server.model && each.acc === part.accelerator,
      );
      if (!accelerator) continue;
      const taken = part.numReplicas * (perf?.accCount || 1) * accelerator.multiplicity;
      used.set(accelerator.type, (used.get(accelerator.type) ?? 0) + taken);
    }
  }
  return used;
}

function accelerators(system) {
  return plainTable(
    ["Name", "Cards", "¢/h"],
    system.acceleratorData.accelerators.map((each) => [
      each.name,
      each.multiplicity === 1 ? each.type : `${each.multiplicity} × ${each.type}`,
      number(each.cost),
    ]),
  );
}

function levels(system) {
  const classes = system.serviceClassData.serviceClasses.toSorted(
    (a, b) => a.priority - b.priority,
  );
  const limit = (value) => (value ? number(value) : "–");
  return plainTable(
    ["Class", "Model", "ITL ms", "TTFT ms", "Tokens/s"],
    classes.flatMap((each) =>
      each.modelTargets.map((target) => [
        `${each.priority} ${each.name}`,
        target.model,
        limit(target["slo-itl"]),
        limit(target["slo-ttft"]),
        limit(target["slo-tps"]),
      ]),
    ),
  );
}

function plainTable(columns, rows) {
  return h(
    "table",
    { class: "plain-table" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        columns.map((name) => h("th", { scope: "col" }, name)),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map(([name, ...cells]) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, name),
          cells.map((cell) => h("td", {}, cell)),
        ),
      ),
    ),
  );
}
