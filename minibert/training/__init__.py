"""Training: a visible loop, its optimizer and schedule, checkpoints that are whole or absent, a record of it all."""
