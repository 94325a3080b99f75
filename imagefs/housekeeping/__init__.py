"""Looking after a store: what is in it, whether it is whole, what nobody needs any more."""
