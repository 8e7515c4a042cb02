"""Generates the CustomResourceDefinitions from the models: ``python -m kvoffload_api.crd``."""
