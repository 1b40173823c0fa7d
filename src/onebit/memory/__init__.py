"""How much memory the models take, who gets it, and who must go."""
