"""The parts of the instrument for vLLM that can be tested without vLLM: above all, that it never gets in its way."""
