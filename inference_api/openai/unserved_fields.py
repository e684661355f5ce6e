"""Fields of `/v1` bodies that are not served, or that cannot change an answer. Sources: OpenAI's
API reference, and vLLM's `ChatCompletionRequest`, `CompletionRequest` and `TokenizeChatRequest`.
"""

from inference_api.bodies.fields import Unserved

IGNORED = frozenset(
    {
        "include_reasoning",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
# OpenAI's and vLLM's fields that are not served, with the values that ask for nothing.
UNSERVED: Unserved = {
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "cache_salt": (),
    "detokenize": (True,),
    "early_stopping": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logit_processors": ([],),
    "logits_processors": ([],),
    "logprob_token_ids": (),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "repetition_detection": (),
    "request_id": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "suffix": ("",),
    "thinking_token_budget": (-1,),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "web_search_options": (),
}
# vLLM's of its embedding requests.
UNSERVED_OF_EMBEDDINGS: Unserved = {
    "add_special_tokens": (True,),
    "cache_salt": (),
    "chat_template": (),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "mm_processor_kwargs": ({},),
    "normalize": (True,),
    "request_id": (),
    "truncate_prompt_tokens": (),
    "truncation_side": (),
    "use_activation": (True,),
}
# Of routes that make no calls.
UNSERVED_TOOLS: Unserved = {
    "chat_template_kwargs": ({},),
    "reasoning_effort": ("none",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}
UNSERVED_OF_CHAT: Unserved = {
    "chat_template": (),
    "documents": ([],),
}
