// One answer: its text as it comes, and what a client sees of its speed.

import { ApiError, postJson } from "./api.js";
import { h, setText } from "./dom.js";
import { count, duration, number } from "./format.js";
import { blocksOf, elementOf } from "./markdown.js";
import { events } from "./sse.js";

const FIGURES = { ttft: "TTFT", rate: "Tokens/s", tokens: "Tokens", finish: "Finish" };

export class Answer {
  text = "";
  #body = h("div", { class: "answer", "aria-busy": "true" });
  #figures = Object.fromEntries(
    ["ttft", "rate", "tokens", "finish", "model"].map((name) => [
      name,
      h("dd", { "data-figure": name }, "–"),
    ]),
  );
  /** @type {string[]} */
  #shown = []; // the source of each block that is on the page
  #isDrawing = false;
  #timing = { sent_ms: 0, first_ms: NaN, last_ms: NaN, tokens: 0 };

  constructor({ isMarkdown, namesModel }) {
    this.isMarkdown = isMarkdown;
    const labels = namesModel ? { ...FIGURES, model: "Answered by" } : FIGURES;
    this.element = h(
      "li",
      { class: "turn", "data-role": "assistant" },
      h("p", { class: "unseen" }, "Answer:"),
      this.#body,
      h(
        "dl",
        { class: "figures inline" },
        Object.entries(labels).map(([name, label]) =>
          h("div", {}, h("dt", {}, label), this.#figures[name]),
        ),
      ),
    );
  }

  /** Streams the answer in. Returns how it ended, in words; what goes wrong is told in its place. */
  async stream(path, body, signal) {
    this.#timing.sent_ms = performance.now();
    const streamed = {
      ...body,
      stream_options: { include_usage: true, continuous_usage_stats: true },
    };
    /** @type {string | null} */
    let finish = "stopped";
    try {
      finish = await this.#read(await postJson(path, streamed, { signal }));
    } catch (error) {
      if (error.name !== "AbortError") finish = "error";
      if (finish === "error")
        this.#body.after(h("p", { class: "fault", role: "alert" }, error.message));
    }
    this.#body.setAttribute("aria-busy", "false");
    this.#draw();
    setText(this.#figures.finish, finish);
    return `Answer finished, ${finish}: ${count(this.#timing.tokens, "token")}.`;
  }

  /** Takes the pieces as they come; returns the finish reason. */
  async #read(response) {
    /** @type {string | null} */
    let finish = null;
    for await (const data of events(response)) {
      if (data === "[DONE]") return finish;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.status_code, chunk.error.message);
      setText(this.#figures.model, chunk.model);
      const choice = chunk.choices[0];
      this.#timing.tokens = chunk.usage?.completion_tokens ?? this.#timing.tokens;
      this.#take(choice?.delta?.content ?? choice?.text ?? "");
      finish = choice?.finish_reason ?? finish;
    }
    throw new ApiError(0, "The stream broke off before the answer was complete.");
  }

  #take(piece) {
    if (piece) {
      this.#timing.last_ms = performance.now();
      if (!this.text) this.#timing.first_ms = this.#timing.last_ms;
      this.text += piece;
    }
    if (this.#isDrawing) return;
    this.#isDrawing = true; // once a frame is enough
    requestAnimationFrame(() => {
      this.#isDrawing = false;
      this.#draw();
    });
  }

  /** Blocks that did not change stay as they are, with what is selected or focused in them. */
  #draw() {
    this.#drawFigures();
    if (!this.isMarkdown) return setText(this.#body, this.text);
    const blocks = blocksOf(this.text);
    const sources = blocks.map(({ lines }) => lines.join("\n"));
    let same = 0;
    while (same < sources.length && sources[same] === this.#shown[same]) same++;
    for (let i = this.#shown.length - 1; i >= same; i--) this.#body.children[i].remove();
    this.#body.append(...blocks.slice(same).map((block) => elementOf(block)));
    this.#shown = sources;
  }

  #drawFigures() {
    const { sent_ms, first_ms, last_ms, tokens } = this.#timing;
    if (!this.text) return;
    const after_s = (last_ms - first_ms) / 1000;
    setText(this.#figures.ttft, duration((first_ms - sent_ms) / 1000));
    setText(this.#figures.tokens, number(tokens));
    setText(this.#figures.rate, tokens > 1 && after_s > 0 ? number((tokens - 1) / after_s) : "–");
  }
}
