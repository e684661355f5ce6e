// Every request of the page goes out here, to the server it came from, with the token if one is
// needed. The token lives in sessionStorage: this tab, until it closes.

import { byId } from "./dom.js";

const TOKEN_KEY = "hearth-token";
const READ_TIMEOUT_MS = 20_000; // of a GET; a solve or an answer takes as long as it takes

const dialog = byId("token-dialog", HTMLDialogElement);
const form = byId("token-form", HTMLFormElement);
const fault = byId("token-fault", HTMLElement);
/** @type {Promise<void> | null} */
let asking = null; // the promise of a token while the dialog is open

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The response; asks for a token on 401. Throws ApiError with the server's message. */
export async function request(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN_KEY);
    const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
    const signal = options.method ? options.signal : AbortSignal.timeout(READ_TIMEOUT_MS);
    const response = await fetch(path, { ...options, headers, signal });
    if (response.ok) return response;
    if (response.status !== 401) throw new ApiError(response.status, await messageOf(response));
    if (token === sessionStorage.getItem(TOKEN_KEY)) await askForToken(token !== null);
  }
}

export async function getJson(path) {
  return (await request(path)).json();
}

export async function postJson(path, body, options = {}) {
  const headers = { "Content-Type": "application/json" };
  return request(path, { method: "POST", headers, body: JSON.stringify(body), ...options });
}

export function hasToken() {
  return sessionStorage.getItem(TOKEN_KEY) !== null;
}

function askForToken(wasRefused) {
  fault.hidden = !wasRefused;
  asking ??= new Promise((resolve) => {
    const take = (event) => {
      event.preventDefault();
      const token = form.token.value.trim();
      if (!token) return;
      sessionStorage.setItem(TOKEN_KEY, token);
      form.removeEventListener("submit", take);
      form.reset();
      dialog.close();
      asking = null;
      resolve();
    };
    form.addEventListener("submit", take);
    if (!dialog.open) dialog.showModal();
  });
  return asking;
}

dialog.addEventListener("cancel", (event) => event.preventDefault()); // nothing works without one

async function messageOf(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    const faults = (body.faults ?? []).map((each) => `${each.path}: ${each.message}`);
    return faults.length ? faults.join("; ") : (body.message ?? body.detail ?? text);
  } catch {
    return text || `${response.status} ${response.statusText}`;
  }
}
