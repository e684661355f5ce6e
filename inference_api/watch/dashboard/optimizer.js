// The optimizer's view: the system as the server has it, edited loads, and solving it again.

import { allocationTable, totalCost, totalPower } from "./allocations.js";
import { getJson, postJson } from "./api.js";
import { byId, h, setText, showWork } from "./dom.js";
import { count, number } from "./format.js";
import { systemPanels } from "./system_panels.js";

const SOLVERS = {
  greedy: ["Greedy", { unlimited: false, milpSolver: false, priceSolver: false }],
  prices: ["Prices", { unlimited: false, milpSolver: false, priceSolver: true }],
  milp: ["MILP", { unlimited: false, milpSolver: true, priceSolver: false }],
  unlimited: ["Unlimited cards", { unlimited: true, milpSolver: false, priceSolver: false }],
};
const POLICIES = {
  None: "Nothing",
  PriorityExhaustive: "By priority",
  PriorityRoundRobin: "Round robin by priority",
  RoundRobin: "Round robin",
};

const isStateful = document.documentElement.dataset.optimizer === "stateful";
const root = byId("optimizer-body", HTMLElement);
const status = byId("optimizer-status", HTMLElement);
const fault = byId("optimizer-fault", HTMLElement);
const tell = (work) => showWork(root, status, fault, work);
const examplePath = new URL("example_system.json", import.meta.url).pathname;

/** @type {any} */
let state = null; // as in GET /state
/** @type {any} */
let answer = null; // of the last solve here: changes, reasons, summary
const loads = new Map(); // server name -> its load, where it was edited since the last solve
const form = makeForm();
const panels = h("div", { class: "side-by-side" });

/** Called whenever the view comes up: edits stay, the rest is as the server has it now. */
export function showOptimizer() {
  return tell(async () => {
    const before = JSON.stringify(state);
    state = await getJson("/state");
    if (JSON.stringify(state) !== before) answer = null; // somebody else changed or solved it
    render();
  });
}

/** Solves the system as it is on the server now, with the loads and flags given here. */
async function solve(flags) {
  const { system } = await getJson("/state");
  const servers = system.serverData.servers.map(withLoad);
  if (isStateful) {
    const edited = servers.filter((server) => loads.has(server.name));
    if (edited.length) await postJson("/setServers", { servers: edited });
    answer = await (await postJson("/optimize", flags)).json();
  } else {
    await solveWhole({ ...system, serverData: { servers }, optimizerData: { optimizer: flags } });
  }
}

async function solveWhole(whole) {
  answer = await (await postJson("/optimizeOne", { system: whole })).json();
}

function withLoad(server) {
  const load = loads.get(server.name) ?? server.currentAlloc.load;
  return { ...server, currentAlloc: { ...server.currentAlloc, load } };
}

/** Runs a solve, shows its answer, and tells what came of it. */
function act(work) {
  if (root.ariaBusy === "true") return;
  tell(async () => {
    setText(status, "Solving…");
    await work();
    loads.clear();
    state = await getJson("/state");
    render();
    setText(status, told());
  });
}

function told() {
  const { summary, unallocated, loadFaults } = answer;
  const refused = Object.keys(unallocated).length;
  const unknown = Object.keys(loadFaults).length;
  const rest =
    (refused ? `, ${count(refused, "server")} without allocation` : "") +
    (unknown ? `, ${count(unknown, "server")} without a load that can be used` : "");
  return [`Solved: ${number(summary.totalCost)} ¢/h${rest}.`, ...summary.notes].join(" ");
}

function render() {
  if (state.system.serverData.servers.length === 0) {
    root.replaceChildren(emptyState());
    return;
  }
  if (!root.contains(form.element)) {
    const hadFocus = root.contains(document.activeElement); // on what is replaced
    root.replaceChildren(form.element, panels);
    if (hadFocus) form.solver.focus();
  }
  form.fill();
  panels.replaceChildren(...systemPanels(state.system));
}

function emptyState() {
  const text = h("textarea", { rows: 8, spellcheck: "false", placeholder: '{"system": {…}}' });
  const solveText = () => act(async () => solveWhole(wholeOf(parse(text.value))));
  const solveExample = () => act(async () => solveWhole(wholeOf(await getJson(examplePath))));
  return h(
    "section",
    { class: "panel empty" },
    h("h2", {}, "No system yet"),
    h(
      "p",
      { class: "quiet" },
      "The optimizer finds the accelerators, replicas and batch sizes that meet your SLOs at the " +
        "lowest cost. Paste a system in the format of POST /optimizeOne, or try the made-up " +
        "example.",
    ),
    h("label", { class: "field" }, "System, as JSON", text),
    h(
      "div",
      { class: "actions" },
      h("button", { type: "button", class: "primary", onclick: solveText }, "Solve"),
      h("button", { type: "button", onclick: solveExample }, "Solve the example"),
    ),
  );
}

function parse(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
}

function wholeOf(value) {
  return value.system ?? value;
}

/** The form stays in place between solves, so that nobody loses the focus; `fill` renews it. */
function makeForm() {
  const solver = select(Object.entries(SOLVERS).map(([value, [name]]) => [value, name]));
  const policy = select(Object.entries(POLICIES));
  const figures = h("dl", { class: "figures inline" });
  const table = h("div", {});
  const submit = (event) => {
    event.preventDefault();
    if (!element.reportValidity()) return;
    const flags = state.system.optimizerData.optimizer;
    act(() => solve({ ...flags, ...SOLVERS[solver.value][1], saturationPolicy: policy.value }));
  };
  const element = h(
    "form",
    { class: "panel", onsubmit: submit, novalidate: true },
    h("header", { class: "panel-head" }, h("h2", {}, "Allocation"), figures),
    h(
      "div",
      { class: "controls" },
      h("label", { class: "field" }, "Solver", solver),
      h("label", { class: "field" }, "If cards run out", policy),
      h("button", { type: "submit", class: "primary" }, "Re-solve"),
    ),
    table,
  );
  const fill = () => {
    const flags = state.system.optimizerData.optimizer;
    solver.value = solverOf(flags);
    policy.value = flags.saturationPolicy;
    figures.replaceChildren(...figuresOf());
    const focused = table.contains(document.activeElement) && document.activeElement?.ariaLabel;
    table.replaceChildren(...allocationTable({ ...state, answer, loads }));
    if (focused) table.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  };
  return { element, solver, fill };
}

/** Returns the solver that the flags ask for; where they ask for none, the one that plans best. */
function solverOf(flags) {
  if (flags.unlimited) return "unlimited";
  if (flags.milpSolver) return "milp";
  return flags.priceSolver === false ? "greedy" : "prices";
}

function select(options) {
  return h(
    "select",
    {},
    options.map(([value, name]) => h("option", { value }, name)),
  );
}

function figuresOf() {
  const desired = state.system.serverData.servers.map((server) => server.desiredAlloc);
  const power_W = desired.reduce((sum, each) => sum + totalPower(each), 0);
  const entries = [
    ["Cost", `${number(desired.reduce((sum, each) => sum + totalCost(each), 0))} ¢/h`],
    ["Servers", String(desired.length)],
    power_W >= 0 && ["Power", `${number(power_W / 1000)} kW`],
    answer && ["Solved by", answer.summary.solver],
  ];
  return entries
    .filter(Boolean)
    .map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)));
}
