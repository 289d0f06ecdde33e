"""Language models that are fine-tuned by LoRA."""
