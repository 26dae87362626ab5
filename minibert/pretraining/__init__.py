"""A pretraining run: its config, its journey through the text, and what is written down on the way."""
