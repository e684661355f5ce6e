// "How many GPUs?": a load and its levels in, accelerators, replicas and costs out, with reasons.

import { getJson, postJson } from "./api.js";
import { byId, h, setText, showWork } from "./dom.js";
import { count, number, percent } from "./format.js";

const COLUMNS = ["Accelerator", "Replicas", "Cost", "TTFT", "ITL", "Rows busy", "Speed"];
const KINDS = {
  measured: "your own measurement",
  fitted: "fitted to published figures",
  estimated: "estimated from the datasheet",
};

const form = byId("plan-form", HTMLFormElement);
const status = byId("plan-status", HTMLElement);
const fault = byId("plan-fault", HTMLElement);
const answerBox = byId("plan-answer", HTMLElement);
const tell = (work) => showWork(form, status, fault, work);

/** Called whenever the view comes up: the models are asked for once. */
export async function showHowMany() {
  const models = form.elements.namedItem("model");
  if (!(models instanceof HTMLSelectElement) || models.options.length) return;
  await tell(async () => {
    const catalogue = await getJson("/catalogue");
    if (models.options.length) return; // the view came up twice meanwhile
    models.append(...catalogue.models.map(({ name }) => h("option", { value: name }, name)));
  });
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (form.ariaBusy === "true" || !form.reportValidity()) return;
  tell(async () => {
    setText(status, "Sizing…");
    const answer = await (await postJson("/howmany", question())).json();
    answerBox.replaceChildren(...answerOf(answer));
    setText(status, told(answer));
  });
});

/** The form as POST /howmany takes it: rates per minute, and what is left empty left out. */
function question() {
  const given = Object.fromEntries(
    [...new FormData(form)]
      .filter(([, value]) => value !== "")
      .map(([name, value]) => [
        name,
        name === "model" || name === "precision" ? value : Number(value),
      ]),
  );
  const { rate, ...rest } = given;
  return { ...rest, arrivalRate: 60 * Number(rate) };
}

function told({ choices, nearest }) {
  if (choices.length) {
    const [first] = choices;
    const cards = count(first.cards, "card");
    return `Cheapest: ${cards} of ${first.title}, for ${dollars(first.cost)} per hour.`;
  }
  const rest = nearest
    ? ` The nearest, ${nearest.accelerator}, has TTFT ${number(nearest.ttftAverage)} ms and ` +
      `ITL ${number(nearest.itlAverage)} ms when idle.`
    : "";
  return `No accelerator in the catalogue meets these SLOs.${rest}`;
}

function answerOf({ choices, changes, notChosen, notes }) {
  return [
    choices.length ? table(choices) : null,
    list(
      "What would change it",
      changes.map(({ text }) => text),
    ),
    list(
      "Not chosen",
      notChosen.map(({ accelerator, reason }) => `${accelerator}: ${reason}`),
    ),
    list("Notes", notes),
  ].filter(Boolean);
}

function table(choices) {
  return h(
    "table",
    { class: "choices folds", role: "table" },
    h("caption", { class: "unseen" }, "Accelerators that meet the SLOs, cheapest first"),
    h(
      "thead",
      { role: "rowgroup" },
      h(
        "tr",
        { role: "row" },
        COLUMNS.map((name) => h("th", { role: "columnheader", scope: "col" }, name)),
      ),
    ),
    h("tbody", { role: "rowgroup" }, choices.map(line)),
  );
}

function line(choice) {
  const { cardsPerReplica, numReplicas, maxBatch, speed } = choice;
  const cell = (index, ...content) =>
    h("td", { role: "cell", "data-label": COLUMNS[index] }, content);
  const of = cardsPerReplica > 1 ? ` × ${count(cardsPerReplica, "card")}` : "";
  return h(
    "tr",
    { role: "row", "data-accelerator": choice.accelerator },
    h("th", { role: "rowheader", scope: "row", class: "name" }, choice.title),
    cell(
      1,
      `${numReplicas}${of}`,
      small(
        range(choice.replicasRange, (value) => number(value)),
        `batch ${maxBatch}`,
      ),
    ),
    cell(2, `${dollars(choice.cost)}/h`, small(range(choice.costRange, dollars))),
    cell(3, ms(choice.ttftAverage), small(range(choice.ttftRange, ms))),
    cell(4, ms(choice.itlAverage), small(range(choice.itlRange, ms))),
    cell(5, percent(choice.utilization)),
    cell(6, `±${percent(speed.error)}`, small(KINDS[speed.kind], sources(speed.sources))),
  );
}

function small(...content) {
  return h(
    "span",
    { class: "quiet small" },
    content.filter(Boolean).flatMap((each, index) => (index ? [", ", each] : [each])),
  );
}

function sources(urls) {
  if (!urls.length) return null;
  return h(
    "span",
    {},
    urls.flatMap((url, index) => [
      index ? " " : "",
      h("a", { href: url, rel: "noreferrer" }, `source ${index + 1}`),
    ]),
  );
}

function range({ low, high }, text) {
  if (low === high) return null;
  return high === null ? `${text(low)} to overloaded` : `${text(low)} to ${text(high)}`;
}

function list(title, texts) {
  if (!texts.length) return null;
  return h(
    "section",
    { class: "reasons" },
    h("h3", {}, title),
    h(
      "ul",
      {},
      texts.map((text) => h("li", {}, text)),
    ),
  );
}

function ms(value) {
  return `${number(value)} ms`;
}

function dollars(cents) {
  return `$${(cents / 100).toFixed(2)}`;
}
