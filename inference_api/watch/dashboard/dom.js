// Building and changing elements. Text is only ever set as text: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * The element that index.html has under this id, which is a `type`.
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} type
 */
export function byId(id, type) {
  const element = document.getElementById(id);
  if (!(element instanceof type)) throw new TypeError(`the page has no ${type.name} ${id}`);
  return element;
}

/** `h("td", {class: "number"}, "12")`; properties that start with "on" are listeners. */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Does the work with `area` marked as busy; shows its failure in `fault` in place of `status`. */
export async function showWork(area, status, fault, work) {
  area.ariaBusy = "true";
  fault.hidden = true;
  try {
    await work();
  } catch (error) {
    setText(status, "");
    fault.hidden = false;
    setText(fault, error.message);
  } finally {
    area.ariaBusy = "false";
  }
}

/** A horizontal bar, `share` of it filled. What it shows must stand beside it as text. */
export function bar(share, properties = {}) {
  const fill = h("span");
  fill.style.setProperty("inline-size", `${100 * Math.min(1, Math.max(0, share))}%`);
  return h(
    "span",
    { ...properties, class: `bar ${properties.class ?? ""}`, "aria-hidden": "true" },
    fill,
  );
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}
