"""SpecLens' engine: decoding, tokens, models, analysis. Knows nothing of screens; `python -m engine` is its door."""
