"""Latency budgets inside SGLang's scheduler: views, plans and their effects."""
