"""`bench deps`: how fast a job has its dependencies: installed, or mounted from a snapshot of an earlier installation.

recipe       pure: what is installed, and what a job imports of it
wheels       the index that installers take it from
node         a host: its target, the caches of its installers, and what is run there
plan         pure: systems, targets and ratios
measure      runs the plan
disk         what variants of one installation take, in a store and otherwise
report       tables and the chart
"""
