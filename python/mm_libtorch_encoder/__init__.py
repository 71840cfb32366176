"""Native multimodal encoder: media bytes in, owning Torch tensors with a tower's embeddings out."""
