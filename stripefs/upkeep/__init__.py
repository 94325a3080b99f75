"""What a source needs that was written to: versions that lost their name, and what writers that died left behind."""
