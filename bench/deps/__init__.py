"""`bench deps`: how fast a job has its dependencies: installed, or mounted from a snapshot of an earlier installation.

plan         pure: packages and imports, systems, targets, ratios, report
wheels       the index that installers take packages from
node         a host: its target, the caches of its installers, and what is run there
measure      the whole, and what variants of one installation take on disk
"""
