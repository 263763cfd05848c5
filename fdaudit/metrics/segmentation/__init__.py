"""Utility of segmentation: overlap of pixels, of objects, and distance of boundaries."""
