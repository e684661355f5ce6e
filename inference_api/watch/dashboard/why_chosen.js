// Why a server got this accelerator, so many replicas and this batch, in sentences. Pure but for `h`.

import { h } from "./dom.js";
import { count, number } from "./format.js";

const LEVELS = {
  "slo-itl": (target) => `its ITL of ${number(target)} ms`,
  "slo-ttft": (target) => `its TTFT of ${number(target)} ms`,
  "slo-tps": (target) => `its ${number(target)} tokens/s`,
};

/** Of an answer of GET /explain and its server; null where nothing is allocated, or a mix is. */
export function whyChosen(explained, server) {
  const { candidates, desiredAlloc, targets } = explained;
  const chosen = candidates.find((each) => each.accelerator === desiredAlloc.accelerator);
  if (chosen?.numReplicas === undefined || desiredAlloc.parts) return null;
  const reasons = [
    [desiredAlloc.accelerator, accelerator(chosen, candidates)],
    [count(desiredAlloc.numReplicas, "replica"), replicas(chosen, desiredAlloc, targets)],
    [`batch ${desiredAlloc.maxBatch}`, batch(server, desiredAlloc)],
  ];
  return h(
    "dl",
    { class: "whys" },
    reasons.map(([what, why]) => h("div", {}, h("dt", {}, what), h("dd", {}, why))),
  );
}

function accelerator(chosen, candidates) {
  const meet = candidates.filter((each) => each.feasible);
  if (!chosen.feasible) return "No accelerator meets the SLOs within the bounds.";
  if (meet.length === 1) return "It is the only one that meets the SLOs.";
  const others = meet.filter((each) => each !== chosen).toSorted((a, b) => a.cost - b.cost);
  const cheaper = others.filter((each) => each.cost < chosen.cost);
  if (!cheaper.length) {
    const [next] = others;
    return `Of ${meet.length} that meet the SLOs it costs least, ${price(chosen)}; the next is ${next.accelerator}, ${price(next)}.`;
  }
  return cheaper
    .map((each) => `${each.accelerator} would cost ${price(each)}, but ${drawback(each, chosen)}.`)
    .join(" ");
}

function drawback(cheaper, chosen) {
  if (cheaper.shortage) return cheaper.shortage.message;
  if (cheaper.value >= chosen.value) return "the cost of changing to it counts for more";
  return "its cards went to other servers";
}

function replicas({ numReplicas, maxRPM, maxRateFor }, { numReplicas: given, load }, targets) {
  const needed = load.arrivalRate / maxRPM;
  if (!(needed > 0)) return "No requests arrive, so it gets its minimum.";
  const bound = Object.keys(LEVELS)
    .filter((name) => targets?.[name] > 0 && maxRateFor?.[name] <= 1.001 * maxRPM)
    .map((name) => LEVELS[name](targets[name]));
  const each =
    `One replica handles ${number(maxRPM)} requests/min` +
    (bound.length ? `, limited by ${bound.join(" and ")}` : ", limited by its batch and queue");
  const rounded = `${number(load.arrivalRate)} need ${number(needed)}`;
  if (given < numReplicas) return `${each}; ${rounded}, but there were too few cards.`;
  if (given > Math.ceil(needed)) return `${each}; ${rounded}, and the server's minimum is higher.`;
  return `${each}; ${rounded}.`;
}

function batch(server, { load }) {
  if (server.maxBatchSize > 0) return "Set by the server.";
  const answers = `answers of ${count(load.avgOutTokens, "token")}`;
  return `The largest that the accelerator's performance data allow for ${answers}.`;
}

function price({ cost }) {
  return `${number(cost)} ¢/h`;
}
