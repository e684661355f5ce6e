"""A replica simulated token by token: the judge of the analytic model. Pure and seeded."""
