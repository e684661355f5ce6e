"""A model as `hearth_step` reads it: the structs of `src/interface.h`, field by field."""

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p


class Linear(Structure):
    _fields_ = (
        ("packed", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int64),
        ("inputs", c_int64),
    )


class Norm(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class Layer(Structure):
    _fields_ = (
        ("attention_norm", Norm),
        ("mlp_norm", Norm),
        ("qk_norm", c_void_p),
        ("qkv", Linear),
        ("out", Linear),
        ("up", Linear),
        ("down", Linear),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("window", c_int64),
    )


class Model(Structure):
    _fields_ = (
        ("layers", POINTER(Layer)),
        ("embedding", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("final_norm", Norm),
        ("head", Linear),
        ("num_layers", c_int64),
        ("hidden", c_int64),
        ("ffn", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("row_stride", c_int64),
        ("head_stride", c_int64),
        ("bits", c_int32),
        ("embedding_type", c_int32),
        ("cache_type", c_int32),
        ("norm", c_int32),
        ("activation", c_int32),
        ("is_gated", c_int32),
        ("is_parallel", c_int32),
        ("norm_eps", c_float),
        ("attention_scale", c_float),
        ("embedding_multiplier", c_float),
        ("residual_multiplier", c_float),
        ("logits_divisor", c_float),
    )
