// The Markdown that models write, as elements. Nothing is parsed as HTML: markup in a text stays
// text, and only http and https links become links.

import { copyButton } from "./copying.js";
import { h } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(\S.*)$/;
const ITEM = /^( {0,3})([-*+]|(\d{1,9})[.)])( {1,4}|$)(?! )/;
const NESTED = 2; // spaces from which on a line belongs to the item above
const MAX_DEPTH = 8; // of lists in lists; deeper ones stay text

// Each alternative ends at the next mark of its kind, so a text takes time in proportion to its length.
const SPAN = new RegExp(
  [
    String.raw`\\(?<escaped>[\\\x60*_[\]()#+.!-])`,
    "(?<ticks>`{1,3})(?!`)(?<code>[^`]+)\\k<ticks>(?!`)",
    String.raw`\*\*(?=[^\s*])(?<strong>(?:[^*]|\*(?!\*))+)(?<=\S)\*\*`,
    String.raw`(?<!\w)__(?=[^\s_])(?<strong2>[^_]+)(?<=\S)__(?!\w)`,
    String.raw`\*(?=[^\s*])(?<em>[^*]+)(?<=\S)\*(?!\*)`,
    String.raw`(?<!\w)_(?=[^\s_])(?<em2>[^_]+)(?<=\S)_(?!\w)`,
    String.raw`\[(?<label>[^\][]+)\]\((?<target>[^()\s]+)\)`,
  ].join("|"),
  "g",
);

/**
 * The blocks of a text, each with the lines it was written in: while an answer grows, only the
 * last one changes.
 * @param {string} text
 */
export function blocksOf(text) {
  return split(text.replaceAll("\t", "    ").split(/\r?\n/));
}

/** The element of a block, in `depth` lists. */
export function elementOf({ kind, lines }, depth = 0) {
  if (kind === "code") return codeBlock(lines);
  if (kind === "heading") return heading(lines[0]);
  if (kind === "list" && depth < MAX_DEPTH) return list(lines, depth);
  return h("p", {}, inline(lines.join("\n")));
}

/** @param {string[]} lines */
function split(lines) {
  /** @type {{kind: string, lines: string[]}[]} */
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const kind = kindOf(lines[at]);
    const end = kind === "blank" ? at + 1 : ENDS[kind](lines, at);
    if (kind !== "blank") blocks.push({ kind, lines: lines.slice(at, end) });
    at = end;
  }
  return blocks;
}

function kindOf(line) {
  if (!line.trim()) return "blank";
  if (FENCE.test(line)) return "code";
  if (HEADING.test(line)) return "heading";
  return ITEM.test(line) ? "list" : "paragraph";
}

/** Where the block ends that begins `at`, by its kind. */
const ENDS = {
  code: endOfCode,
  heading: (_lines, at) => at + 1,
  list: endOfList,
  paragraph: endOfParagraph,
};

function endOfCode(lines, at) {
  const fence = FENCE.exec(lines[at])?.[1] ?? "";
  for (let end = at + 1; end < lines.length; end++) if (closes(lines[end], fence)) return end + 1;
  return lines.length;
}

function closes(line, fence) {
  const marks = line.trim();
  return marks.length >= fence.length && marks === fence[0].repeat(marks.length);
}

function endOfParagraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && kindOf(lines[end]) === "paragraph") end++;
  return end;
}

/** A list goes on with items of its sort, with what is indented, and over blank lines before these. */
function endOfList(lines, at) {
  const isOrdered = ITEM.exec(lines[at])?.[3] !== undefined;
  let end = at + 1;
  for (let next = end; next < lines.length; next++) {
    const line = lines[next];
    if (!line.trim()) continue;
    const item = ITEM.exec(line);
    const isSibling = item !== null && (item[3] !== undefined) === isOrdered;
    if (!isSibling && indentOf(line) < NESTED) break;
    end = next + 1;
  }
  return end;
}

function indentOf(line) {
  return line.length - line.trimStart().length;
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  /** @type {string[][]} */
  const items = [];
  let width = 0; // of the item's marker
  for (const line of lines) {
    const item = ITEM.exec(line);
    const indent = indentOf(line);
    if (item && (indent < NESTED || !items.length)) {
      width = item[0].length;
      items.push([line.slice(width)]);
    } else items[items.length - 1].push(line.slice(Math.min(width, indent)));
  }
  const ordinal = first?.[3];
  return h(
    ordinal === undefined ? "ul" : "ol",
    { start: ordinal !== undefined && ordinal !== "1" ? ordinal : null },
    items.map((item) => h("li", {}, contentOf(item, depth + 1))),
  );
}

/** Of an item: a lone paragraph needs no element of its own. */
function contentOf(lines, depth) {
  const blocks = split(lines);
  return blocks.flatMap((block, i) =>
    i === 0 && block.kind === "paragraph"
      ? inline(block.lines.join("\n"))
      : elementOf(block, depth),
  );
}

/** All of one rank below the page's own: models skip ranks, and pages must not. */
function heading(line) {
  const [, marks, text] = HEADING.exec(line) ?? ["", "#", line];
  return h("h3", { "data-rank": marks.length }, inline(text));
}

function codeBlock(lines) {
  const [, fence, info] = FENCE.exec(lines[0]) ?? ["", "```", ""];
  const isClosed = lines.length > 1 && closes(lines[lines.length - 1], fence);
  const source = lines.slice(1, isClosed ? -1 : undefined).join("\n");
  const code = h("code", {}, source);
  return h(
    "figure",
    { class: "code" },
    h(
      "figcaption",
      {},
      h("span", {}, info.trim().split(" ")[0]),
      copyButton("Copy code", () => source, code),
    ),
    // What scrolls must be reached by keyboard.
    h("pre", { tabindex: 0 }, code),
  );
}

/** @param {string} text */
function inline(text) {
  /** @type {(string | Element)[]} */
  const nodes = [];
  let from = 0;
  for (const match of text.matchAll(SPAN)) {
    if (match.index > from) nodes.push(text.slice(from, match.index));
    nodes.push(span(match.groups ?? {}, match[0]));
    from = match.index + match[0].length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

/** @param {Record<string, string>} found */
function span({ escaped, code, strong, strong2, em, em2, label, target }, source) {
  if (escaped) return escaped;
  if (code) return h("code", {}, code);
  if (strong ?? strong2) return h("strong", {}, inline(strong ?? strong2));
  if (em ?? em2) return h("em", {}, inline(em ?? em2));
  if (!isWeb(target)) return source;
  return h("a", { href: target, rel: "noopener noreferrer", target: "_blank" }, inline(label));
}

function isWeb(target) {
  return /^https?:\/\//i.test(target) && URL.canParse(target);
}
