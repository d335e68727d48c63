"""What other stores of KV pages take to read what bana's directory tier reads."""
