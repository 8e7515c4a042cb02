"""Copies between GPU memory and the agent's segments (DESIGN section 4, "Who copies").

``plan`` decides how to copy, without a GPU; ``pins`` keeps segments registered; ``carrier`` queues
and waits; ``driver`` alone calls CUDA, by NVIDIA's own binding of the driver API.
Nothing of this was run on a GPU yet.
"""

from kvoffload_client.cuda.device import Device, DeviceUnavailableError

__all__ = ["Device", "DeviceUnavailableError"]
