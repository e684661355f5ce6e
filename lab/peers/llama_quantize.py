"""llama.cpp's own quantiser, for types that the `gguf` package cannot write.

Runs in llama.cpp's environment, as `python -m lab.peers.llama_quantize SOURCE TARGET Q4_K_M`.
"""

import sys

from lab.peers.llama_apis import API


def main() -> None:
    source, target, type_name = sys.argv[1:]
    API.silence()
    params = API.c.llama_model_quantize_default_params()
    params.ftype = getattr(API.c, f"LLAMA_FTYPE_MOSTLY_{type_name}")
    if API.c.llama_model_quantize(source.encode(), target.encode(), params):
        raise SystemExit(f"{source} becomes no {type_name}: {' '.join(API.errors)}")


if __name__ == "__main__":
    main()
