"""What each step from a plain store to bana's gives to prompts that share long documents."""
