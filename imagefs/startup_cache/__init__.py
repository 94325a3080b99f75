"""Start-up caches: files that the first start of a job computes, captured once and mounted on later starts."""
