"""Growth with the fleet: a discrete-event model of the slowest node, and runs that it is checked against."""
