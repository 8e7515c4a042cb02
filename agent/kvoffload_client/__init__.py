"""What an inference engine imports: sessions with the node agent, copies, the vLLM connector."""
