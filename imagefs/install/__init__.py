"""`imagefs install`: the services of a host as units of systemd."""
