// A search as a picture: every trial a dot, the best so far a line, the noise-aware best dashed.

import { h, svg } from "./dom.js";
import { count, number } from "./format.js";

const WIDTH = 600;
const HEIGHT = 160;
const MARGIN = 0.06; // of the values' range, above and below

export function searchChart({ history, offset, direction, noise_aware_best: best }) {
  const metrics = history.map((each) => each.performance_metric);
  const bests = runningBest(metrics, direction);
  const [low, high] = span([...metrics, best.performance_metric]);
  const x = (trial) => (WIDTH * (trial + 0.5)) / metrics.length;
  const y = (metric) => HEIGHT * (1 - (metric - low) / (high - low));
  const steps = bests
    .map((metric, trial) => `${trial ? `H${x(trial)}V` : `M${x(0)} `}${y(metric)}`)
    .join("");
  const level = y(best.performance_metric);
  const spoken =
    `${count(metrics.length, "trial")}, values from ${number(Math.min(...metrics))} to ` +
    `${number(Math.max(...metrics))}, best so far ${number(bests.at(-1))}`;
  const plot = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": spoken,
    },
    svg("path", { class: "grid", d: `M0 0H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}` }),
    svg("path", { class: "axis", d: `M0 ${HEIGHT}H${WIDTH}` }),
    // Lines of no length with round ends: dots that stay round however the picture is stretched.
    svg("path", {
      class: "dots",
      d: metrics.map((metric, trial) => `M${x(trial)} ${y(metric)}h0`).join(""),
    }),
    svg("path", { class: "line first", d: steps }),
    svg("path", { class: "line second", d: `M0 ${level}H${WIDTH}` }),
  );
  return h(
    "figure",
    { class: "search" },
    h(
      "div",
      { class: "plot" },
      plot,
      h("span", { class: "top-label" }, number(high)),
      h("span", { class: "bottom-label" }, number(low)),
    ),
    h(
      "figcaption",
      { class: "note quiet" },
      `trials ${offset + 1} to ${offset + metrics.length}`,
      h(
        "ul",
        { class: "legend" },
        h("li", { class: "key-dots" }, "trial"),
        h("li", { class: "key-first" }, "best so far"),
        h("li", { class: "key-second" }, "best after noise"),
      ),
    ),
  );
}

/** The best of each metric and all before it. */
export function runningBest(metrics, direction) {
  const better = direction === "maximize" ? Math.max : Math.min;
  let best = metrics[0];
  return metrics.map((metric) => {
    best = better(best, metric);
    return best;
  });
}

function span(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const margin = (high - low || Math.abs(high) || 1) * MARGIN;
  return [low - margin, high + margin];
}
