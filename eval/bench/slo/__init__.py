"""Latency budgets beside SGLang's own orders, on a real engine."""
