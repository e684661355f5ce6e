"""Pipeline parallelism: one model, its layers split over several processes (ranks)."""
