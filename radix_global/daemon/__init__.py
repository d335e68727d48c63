"""The store's daemon: whose pages are where, who waits for which, and what happens next."""
