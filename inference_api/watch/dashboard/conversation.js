// What was asked and answered so far: as the page shows it, and as the next request repeats it.

import { Answer } from "./answer.js";
import { h } from "./dom.js";

export class Conversation {
  element = h("ol", { class: "turns" });
  /** @type {{prompt: string, answer: Answer, turn: Element}[]} */
  #exchanges = [];

  get isEmpty() {
    return this.#exchanges.length === 0;
  }

  /** What was asked last. */
  get lastPrompt() {
    return this.#exchanges.at(-1)?.prompt ?? "";
  }

  /** Shows the prompt; returns the answer to it, which is to come. */
  ask(prompt, options) {
    const answer = new Answer(options);
    const turn = h(
      "li",
      { class: "turn", "data-role": "user" },
      h("p", { class: "unseen" }, "You:"),
      h("div", { class: "said" }, prompt),
    );
    this.#exchanges.push({ prompt, answer, turn });
    this.element.append(turn, answer.element);
    return answer;
  }

  /** All turns but the last exchange, if it is to be repeated. What got no answer is left out: it
   * was refused, and would be again. */
  turns(isRepeated) {
    return this.#exchanges
      .slice(0, isRepeated ? -1 : undefined)
      .filter(({ answer }) => answer.text)
      .flatMap(({ prompt, answer }) => [
        { role: "user", content: prompt },
        { role: "assistant", content: answer.text },
      ]);
  }

  /** Forgets the last exchange. */
  takeBack() {
    const last = this.#exchanges.pop();
    last?.turn.remove();
    last?.answer.element.remove();
  }

  clear() {
    this.#exchanges = [];
    this.element.replaceChildren();
  }
}
