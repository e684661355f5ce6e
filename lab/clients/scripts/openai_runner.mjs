// openai in JavaScript: its runner of tools, streamed.
import { readFile } from "node:fs/promises";
import OpenAI from "openai";

const parameters = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const read = { name: "read_note", parameters, parse: JSON.parse, function: ({ path }) => readFile(path, "utf8") };
const runner = new OpenAI().chat.completions.runTools({
  model: "tiny",
  stream: true,
  messages: [{ role: "user", content: process.argv[2] }],
  tools: [{ type: "function", function: read }],
});
console.log(await runner.finalContent());
