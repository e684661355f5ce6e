"""Fields of `/v1` bodies that are left aside or not served: see `web.fields`.

Sources: OpenAI's API reference, and vLLM's `ChatCompletionRequest`, `CompletionRequest` and
`TokenizeChatRequest`.
"""

from inference_api.web.fields import Unserved

ADVISORY = frozenset(
    {
        "cache_control",
        "client_metadata",
        "early_stopping",
        "guided_decoding_backend",
        "guided_whitespace_pattern",
        "include_reasoning",
        "kv_transfer_params",
        "length_penalty",
        "metadata",
        "mm_processor_kwargs",
        "mode",
        "models",
        "moderation",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "repetition_detection",
        "request_id",
        "safety_identifier",
        "service_tier",
        "spaces_between_special_tokens",
        "store",
        "stream_interval",
        "thinking_token_budget",
        "top_a",
        "typ_p",
        "user",
        "verbosity",
        "vllm_xargs",
        "web_search_options",
    }
)
# OpenAI's and vLLM's fields that are not served, with the values that request nothing.
UNSERVED: Unserved = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "detokenize": (True,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_processors": ([],),
    "logits_processors": ([],),
    "logprob_token_ids": (),
    "modalities": (["text"],),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_beam_search": (False,),
}
# Fields of vLLM's embedding requests.
UNSERVED_OF_EMBEDDINGS: Unserved = {
    "add_special_tokens": (True,),
    "chat_template": (),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "normalize": (True,),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_activation": (True,),
}
# For routes that make no calls.
UNSERVED_TOOLS: Unserved = {
    "chat_template_kwargs": ({},),
    "reasoning_effort": ("none",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
UNSERVED_OF_CHAT: Unserved = {"chat_template": (), "documents": ([],)}
