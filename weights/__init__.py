"""Which share of a model each of several unequal machines should get, found by measuring.

`search` names the parts, `simplex` and `samplers` choose what to measure next, `partition` and
`engines` turn weights into whole layers; all pure. `store` keeps what was told, `service` joins
them in a process, `routes` speak HTTP.
"""
