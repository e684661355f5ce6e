"""OpenAI's and vLLM's wire format: bodies, answers, log probabilities. No Flask."""
