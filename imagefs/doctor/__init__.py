"""`imagefs doctor`: what this host can do for imagefs, what it lacks, and what that costs."""
