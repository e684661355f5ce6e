// The last requests that ended, with their timings. Asked for again only when one more has.

import { getJson } from "./api.js";
import { byId, h, setText } from "./dom.js";
import { clock, count, duration } from "./format.js";
import { foldingTable, small } from "./table.js";

const NOTHING = "–";
const COLUMNS = ["Ended", "Request", "Model", "Tokens", "Queue", "TTFT", "ITL", "Total", "End"];
const ORDERS = {
  newest: null, // as they come
  oldest: ({ ended_at }) => -ended_at,
  ttft: ({ ttft_ms }) => ttft_ms,
  itl: ({ itl_ms }) => itl_ms,
  total: ({ total_ms }) => total_ms,
  prompt: ({ prompt_tokens }) => prompt_tokens,
};

const order = byId("requests-order", HTMLSelectElement);
const summary = byId("requests-summary", HTMLElement);
const fault = byId("requests-fault", HTMLElement);
const log = byId("requests-log", HTMLElement);

let asked = ""; // the counts of what had ended, when the requests below were asked for
let requests = []; // newest first

export async function showRequests({ finished, errors }) {
  const ended = JSON.stringify([finished, errors]);
  if (ended === asked) return;
  try {
    requests = await getJson("/dashboard/requests");
    asked = ended;
    fault.hidden = true;
    render();
  } catch (error) {
    fault.hidden = false;
    setText(fault, error.message);
  }
}

order.addEventListener("change", render);

function render() {
  setText(summary, requests.length ? `${count(requests.length, "request")}` : "none yet");
  const lines = ordered(requests, order.value).map(line);
  log.replaceChildren(
    lines.length ? foldingTable("Ended requests", COLUMNS, lines, "requests") : "",
  );
}

/** Largest first, and at the end those that have no such figure. */
export function ordered(requests, name) {
  const value = ORDERS[name];
  return value
    ? requests.toSorted((a, b) => (value(b) ?? -1e300) - (value(a) ?? -1e300))
    : requests;
}

function line(request) {
  return [
    clock(request.ended_at),
    [request.team_id ?? "no team", small(request.request_id, "mono")],
    [request.model, small(request.route)],
    tokens(request),
    ms(request.queue_ms),
    ms(request.ttft_ms),
    ms(request.itl_ms),
    ms(request.total_ms),
    end(request),
  ];
}

function tokens({ prompt_tokens, cached_tokens, completion_tokens }) {
  if (prompt_tokens === null) return NOTHING;
  const cached = cached_tokens ? [small(`${cached_tokens} cached`)] : [];
  return [`${prompt_tokens} → ${completion_tokens}`, ...cached];
}

function end({ status, error, finish_reason, ignored }) {
  const said = ignored.length ? [small(`left aside: ${ignored.join(", ")}`)] : [];
  const how = error ? h("span", { class: "fault-text" }, error) : finish_reason;
  return [how, small(String(status)), ...said];
}

function ms(value) {
  return value === null ? NOTHING : duration(value / 1000);
}
