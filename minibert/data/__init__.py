"""From text to tensors: sources, tokenizer, corpus, sentence pairs, masking, batches, and labelled tasks."""
