"""`bench fleet`: growth with the fleet: a discrete-event model of the slowest node, checked against small fleets.

plan         pure: fleets, the data centre, ratios, report
model        pure: the discrete-event model
namespaces   nodes of a fleet on one machine
node         one node's start, run in its network namespace
check        small fleets, played and predicted
measure      the whole
"""
