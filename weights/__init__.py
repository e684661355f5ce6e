"""Finds, by measuring, the share of a model that each of several unequal machines should get.

`search` defines the types, `simplex` and `samplers` choose the next measurements, and `partition`
turns weights into whole layers; all are pure. `store` keeps measurements, `service` joins the parts
in a process, `routes` serve it over HTTP, and `drivers` search in engines that run elsewhere.
"""
