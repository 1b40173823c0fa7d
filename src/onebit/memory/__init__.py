"""Who gets the card's memory: how much there is, how much an engine needs, and who must go."""
