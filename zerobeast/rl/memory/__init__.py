"""Episodic memory for any recurrent agent: what is rare is kept longer, and enters the policy again. See README.md."""
