"""What each page shows, made of the agent's documents. Pure: nothing here draws, asks an agent or keeps state."""
