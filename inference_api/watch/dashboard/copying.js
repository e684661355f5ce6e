// Copying texts, and the requests of the playground as others would make them.

import { h, setText } from "./dom.js";

const COPIED_MS = 1500;

/** A button that copies what `text()` is then. Where there is no clipboard, it selects `shown`. */
export function copyButton(label, text, shown) {
  const button = h("button", { type: "button", class: "small" }, label);
  button.addEventListener("click", () => copyText(button, text(), shown));
  return button;
}

/** Copies, and says so on the button. Pages from another machine without TLS have no clipboard:
 * the text is shown in `shown`, selected, instead. */
export async function copyText(button, text, shown) {
  button.dataset.label ??= button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    setText(button, "Copied");
  } catch {
    shown.hidden = false;
    setText(shown, text);
    getSelection()?.selectAllChildren(shown);
    setText(button, "Select and copy");
  }
  setTimeout(() => setText(button, button.dataset.label), COPIED_MS);
}

/** The same request for a shell. A token is named, never shown. */
export function curl({ origin, path, body, withToken }) {
  const quoted = JSON.stringify(body).replaceAll("'", String.raw`'\''`);
  const token = withToken ? ' -H "Authorization: Bearer $HEARTH_TOKEN"' : "";
  return `curl -N ${origin}${path}${token} -H 'Content-Type: application/json' -d '${quoted}'`;
}

/** The same request by OpenAI's client. JSON's texts, numbers, lists and objects are Python's too. */
export function python({ origin, path, body, withToken }) {
  const { stream: _, ...given } = body;
  const isChat = "messages" in body;
  return [
    ...(withToken ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    // The client wants a key, also where the server asks for none.
    `client = OpenAI(base_url="${origin}/v1", api_key=${withToken ? 'os.environ["HEARTH_TOKEN"]' : '"none"'})`,
    `stream = client.${path.slice("/v1/".length).replaceAll("/", ".")}.create(`,
    ...Object.entries(given).map(([name, value]) => `    ${name}=${JSON.stringify(value)},`),
    "    stream=True,",
    ")",
    "for chunk in stream:",
    `    print(chunk.choices[0].${isChat ? 'delta.content or ""' : "text"}, end="", flush=True)`,
    "",
  ].join("\n");
}
