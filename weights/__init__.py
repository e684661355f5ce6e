"""Finds, by measuring, the share of a model that each of several unequal machines should get.

`search` names the parts, `simplex` and `samplers` choose what to measure next, `partition` and
`engines` turn weights into whole layers; all pure. `store` keeps what was told, `service` joins
them in a process, `routes` speak HTTP.
"""
