"""Two instances that share a store, beside instances with caches of their own."""
