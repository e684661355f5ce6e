// Why a server got what it got: what every accelerator could do for it, and whether it had cards.

import { getJson } from "./api.js";
import { h } from "./dom.js";
import { count, decimal, number } from "./format.js";
import { whyChosen } from "./why_chosen.js";

/** Opens, below its line, what every accelerator could do for the server. */
export function whyButton(server) {
  const button = h(
    "button",
    {
      type: "button",
      class: "plain",
      "aria-expanded": "false",
      "aria-label": `Why? Accelerators for ${server.name}`,
    },
    "Why?",
  );
  button.addEventListener("click", async () => {
    const row = button.closest("tr");
    const isOpen = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!isOpen));
    if (isOpen) return row.nextElementSibling.remove();
    const content = h("td", { role: "cell", colspan: row.cells.length }, "Asking…");
    row.after(h("tr", { role: "row", class: "why" }, content));
    try {
      const explained = await getJson(`/explain/${encodeURIComponent(server.name)}`);
      content.replaceChildren(whyChosen(explained, server) ?? "", candidates(explained));
    } catch (error) {
      content.replaceChildren(h("p", { class: "fault", role: "alert" }, error.message));
    }
  });
  return button;
}

function candidates(explained) {
  if (explained.refused) return h("p", {}, explained.refused.message);
  return h(
    "ul",
    { class: "candidates" },
    explained.candidates.map((each) =>
      h(
        "li",
        { class: each.feasible && !each.shortage ? "feasible" : "refused" },
        h("strong", {}, each.accelerator),
        " ",
        candidateText(each),
      ),
    ),
  );
}

function candidateText(each) {
  if (each.numReplicas === undefined) return each.reason.message;
  const told = [
    `${count(each.numReplicas, "replica")} of batch ${each.maxBatch} for ${number(each.cost)} ¢/h`,
    `ITL ${decimal(each.itlAverage)} ms, TTFT ${decimal(each.ttftAverage)} ms`,
    `up to ${number(each.maxRPM)} req/min each`,
    each.reason?.message,
    each.shortage?.message,
  ];
  return told.filter(Boolean).join("; ");
}
