// Vercel's AI SDK calls tools of the server at argv[2], of its model argv[3]: once whole, once
// streamed, and in two steps, the second of which answers with the results. Prints JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, name] = process.argv.slice(2);
const model = createOpenAICompatible({ name: "hearth", baseURL: `${url}/v1` })(name);
const tools = {
  weather: tool({
    inputSchema: z.object({ city: z.string().max(8), unit: z.enum(["celsius", "kelvin"]) }),
    execute: async () => "12",
  }),
  now: tool({ inputSchema: z.object({}), execute: async () => "noon" }),
};
const asked = { model, tools, toolChoice: "required", prompt: "What is the weather?", seed: 1 };
const calls = (made) => made.map(({ toolName, input }) => ({ name: toolName, input }));

const whole = await generateText(asked);
const stream = streamText({ ...asked, onError: ({ error }) => Promise.reject(error) });
const kinds = [];
for await (const part of stream.fullStream) kinds.push(part.type);
const steps = await generateText({ ...asked, stopWhen: stepCountIs(2) });
console.log(
  JSON.stringify({
    whole: calls(whole.toolCalls),
    reason: whole.finishReason,
    streamed: calls(await stream.toolCalls),
    kinds: [...new Set(kinds)],
    steps: steps.steps.map((step) => calls(step.toolCalls)),
  }),
);
