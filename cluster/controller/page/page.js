// The controller's page: what GET /state says, every two seconds, and POST /invoke.

const EVERY_MS = 2000;
const MAX_REPLICAS = 200; // that are shown

const element = (/** @type {string} */ id) =>
  /** @type {HTMLElement} */ (document.getElementById(id));

/** @param {number | null | undefined} value */
function shown(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? value.toFixed(0) : value.toPrecision(3);
}

/**
 * A row of cells; a cell is a text, or a text and its class.
 * @param {(string | [string, string])[]} cells
 */
function row(cells) {
  const tr = document.createElement("tr");
  for (const cell of cells) {
    const [text, kind] = typeof cell === "string" ? [cell, ""] : cell;
    const td = tr.insertCell();
    td.textContent = text;
    td.className = kind;
  }
  return tr;
}

/** @param {any[]} groups */
function planText(groups) {
  const planned = groups.filter((group) => group.replicas > 0);
  if (!planned.length) return "none";
  return planned
    .map((group) => `${group.replicas} × ${group.accelerator} (${group.user_rows} rows)`)
    .join(", ");
}

/** Measured, predicted and wanted; measured beyond wanted is marked. */
function latency(seen, kind, wanted) {
  const measured = seen?.measured[`${kind}_ms`];
  const text = [measured, seen?.predicted[`${kind}_ms`], wanted || null].map(shown).join(" · ");
  return /** @type {[string, string]} */ ([
    text,
    wanted && measured > wanted ? "number bad" : "number",
  ]);
}

/** What the last cycle decided about a server. */
function decided(seen) {
  if (!seen) return "–";
  if (seen.held) return seen.held;
  const decision = seen.has_changed ? "changed" : "as it was";
  if (seen.unmet) return [`${decision}, for longer levels: ${seen.unmet}`, "bad"];
  return seen.is_short ? [`${decision}, fewer than its load needs`, "bad"] : decision;
}

function serverRow([name, server], cycle, unplaced) {
  const seen = cycle?.servers[name];
  const states = Object.entries(server.replicas).map(([state, count]) => `${count} ${state}`);
  const lacking = unplaced.filter((each) => each.server === name);
  const missing = lacking.map((each) => `${each.replicas} unplaced: ${each.why}`);
  return row([
    name,
    planText(server.plan),
    [[...states, ...missing].join(", ") || "none", missing.length ? "bad" : ""],
    [shown(seen?.arrived_per_minute), "number"],
    latency(seen, "ttft", server.target["slo-ttft"]),
    latency(seen, "itl", server.target["slo-itl"]),
    [forecasts(seen), "number"],
    decided(seen),
  ]);
}

/** How many of the last forecasts held, of arrivals, TTFT and ITL. */
function forecasts(seen) {
  const scores = seen?.scores ?? {};
  return ["arrivals_per_minute", "ttft_ms", "itl_ms"]
    .map((name) => (scores[name] ? `${scores[name].held} of ${scores[name].judged}` : "–"))
    .join(" · ");
}

function replicaRow(replica) {
  const state = replica.why ? `${replica.state}: ${replica.why}` : replica.state;
  return row([
    replica.name,
    replica.accelerator,
    [`${replica.user_rows}`, "number"],
    [state, replica.state === "failed" ? "bad" : ""],
    replica.url ?? "–",
  ]);
}

/** @param {string} text */
function showFault(text) {
  element("fault").textContent = text;
  element("fault").hidden = !text;
}

function show(state) {
  const { cycle, replicas } = state;
  showFault(state.fault || cycle?.fault || "");
  const ready = replicas.filter((each) => each.state === "ready").length;
  const latest = cycle
    ? `cycle ${cycle.cycle} at ${new Date(cycle.at).toLocaleTimeString()}, ${shown(cycle.cost)} cents/h`
    : "no cycle yet";
  element("summary").textContent = `${ready} of ${replicas.length} replicas ready · ${latest}`;
  const servers = Object.entries(state.servers);
  element("servers").replaceChildren(
    ...servers.map((server) => serverRow(server, cycle, state.unplaced)),
  );
  element("replicas").replaceChildren(...replicas.slice(0, MAX_REPLICAS).map(replicaRow));
}

async function refresh() {
  try {
    const response = await fetch("state");
    if (!response.ok) throw new Error(`the controller answers ${response.status}`);
    show(await response.json());
  } catch (error) {
    showFault(`The state cannot be read: ${error.message}`);
  }
}

async function follow() {
  await refresh();
  setTimeout(follow, EVERY_MS);
}

element("invoke").addEventListener("click", async () => {
  const button = /** @type {HTMLButtonElement} */ (element("invoke"));
  button.disabled = true;
  try {
    const response = await fetch("invoke", { method: "POST" });
    if (!response.ok) showFault((await response.json()).message);
    else await refresh();
  } catch (error) {
    showFault(`No plan was made: ${error.message}`);
  } finally {
    button.disabled = false;
  }
});

follow();
