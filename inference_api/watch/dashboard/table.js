// Tables whose lines become cards on narrow screens, so that roles are explicit.

import { h } from "./dom.js";

/** `lines` are lists of cells, as many as `columns`; a cell is a text, or several things in it. */
export function foldingTable(caption, columns, lines, kind = "") {
  return h(
    "table",
    { class: `folds left ${kind}`, role: "table" },
    h("caption", { class: "unseen" }, caption),
    h(
      "thead",
      { role: "rowgroup" },
      h(
        "tr",
        { role: "row" },
        columns.map((name) => h("th", { role: "columnheader", scope: "col" }, name)),
      ),
    ),
    h(
      "tbody",
      { role: "rowgroup" },
      lines.map((cells) =>
        h(
          "tr",
          { role: "row" },
          cells.map((cell, index) => h("td", { role: "cell", "data-label": columns[index] }, cell)),
        ),
      ),
    ),
  );
}

export function small(text, kind = "") {
  return h("span", { class: `quiet small ${kind}` }, text);
}
