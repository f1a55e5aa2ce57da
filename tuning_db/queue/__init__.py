"""The job queue beneath ``JobQueue``: rows of jobs, their order, leases, batches and their budgets."""
