// @anthropic-ai/sdk in JavaScript: its runner of tools, streamed.
import { readFile } from "node:fs/promises";
import Anthropic from "@anthropic-ai/sdk";

const inputSchema = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const read = {
  name: "read_note",
  input_schema: inputSchema,
  parse: (input) => input,
  run: ({ path }) => readFile(path, "utf8"),
};
const runner = new Anthropic().beta.messages.toolRunner({
  model: "tiny",
  max_tokens: 1024,
  stream: true,
  messages: [{ role: "user", content: process.argv[2] }],
  tools: [read],
});
console.log((await runner.runUntilDone()).content[0].text);
