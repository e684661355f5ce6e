// Small line charts in SVG: a figure, what it is made of, and its last two minutes.

import { h, setText, svg } from "./dom.js";
import { duration } from "./format.js";

const WIDTH = 240;
const HEIGHT = 56;
const TOP = 4; // room for the line's thickness at the maximum
const LONGEST_STEP_S = 5; // a line does not pretend to know what lies between points further apart

/** One chart; the first of its lines may have its area filled. `update` takes the points `[x, y]`
 * of each line. */
export class Chart {
  constructor(title, lines, hasArea = false) {
    this.hasArea = hasArea;
    this.value = h("span", { class: "value" });
    this.unit = h("span", { class: "unit" });
    this.note = h("p", { class: "note quiet" });
    this.top = h("span", { class: "top-label" });
    this.span = h("span", { class: "span" });
    this.area = svg("path", { class: "area" });
    this.dots = svg("path", { class: "dots" });
    this.paths = lines.map((name) => svg("path", { class: `line ${name}` }));
    this.plot = svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" },
      svg("path", { class: "grid", d: `M0 ${TOP}H${WIDTH}M0 ${(TOP + HEIGHT) / 2}H${WIDTH}` }),
      svg("path", { class: "axis", d: `M0 ${HEIGHT - 0.5}H${WIDTH}` }),
      this.area,
      this.dots,
      this.paths.toReversed(),
    );
    this.title = title;
    this.element = h(
      "figure",
      { class: "chart panel" },
      h("figcaption", {}, title, this.span),
      h("p", { class: "reading" }, this.value, " ", this.unit),
      h("div", { class: "plot" }, this.plot, this.top),
      this.note,
    );
  }

  /**
   * `range` is [from, to] on the x axis; `scale` turns a value into the text of a label.
   * @param {{value: string, unit: string, note: string, lines: number[][][], range: number[],
   *   scale: (value: number) => string, ceiling?: number}} figures
   */
  update({ value, unit, note, lines, range, scale, ceiling }) {
    setText(this.value, value);
    setText(this.unit, unit);
    setText(this.note, note);
    setText(this.span, `last ${duration(range[1] - range[0])}`);
    const peak = Math.max(...lines.flat().map(([, y]) => y), 0);
    const max = ceiling ?? niceCeiling(peak);
    setText(this.top, max > 0 ? scale(max) : "");
    for (const [i, points] of lines.entries()) {
      this.paths[i].setAttribute("d", path(points, range, max));
    }
    this.dots.setAttribute("d", dots(lines[0], range, max));
    if (this.hasArea) this.area.setAttribute("d", area(lines[0], range, max));
    this.plot.setAttribute(
      "aria-label",
      `${this.title}: ${value} ${unit}, ${note}; peak ${scale(peak)}`,
    );
  }
}

/** The next 1, 2 or 5 times a power of ten. */
export function niceCeiling(value) {
  if (!(value > 0)) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5].map((step) => step * power).find((step) => step >= value * 0.999) ?? 10 * power;
}

function place([x, y], [from, to], max) {
  const left = (WIDTH * (x - from)) / (to - from);
  const top = HEIGHT - (max > 0 ? ((HEIGHT - TOP) * Math.min(y, max)) / max : 0);
  return `${left.toFixed(1)} ${top.toFixed(1)}`;
}

function path(points, range, max) {
  const step = (point, i) => (isNear(points[i - 1], point) ? "L" : "M") + place(point, range, max);
  return points.map(step).join("");
}

/** The points that no line reaches: lines of no length, whose round ends make them dots. */
function dots(points, range, max) {
  const isAlone = (point, i) => !isNear(points[i - 1], point) && !isNear(point, points[i + 1]);
  const alone = points.filter(isAlone);
  return alone.map((point) => `M${place(point, range, max)}h0`).join("");
}

function isNear(point, next) {
  return point !== undefined && next !== undefined && next[0] - point[0] <= LONGEST_STEP_S;
}

function area(points, range, max) {
  if (points.length < 2) return "";
  const corners = [...points, [points.at(-1)[0], 0], [points[0][0], 0]];
  return `M${corners.map((point) => place(point, range, max)).join("L")}Z`;
}
