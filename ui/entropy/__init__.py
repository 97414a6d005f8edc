"""What the Entropy page draws, from any run that holds entropies."""
