"""What a load run offers: arrivals, prompts, lengths, classes and cancellations, by seed."""
