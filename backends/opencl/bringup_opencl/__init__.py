"""A backend for whatever has an OpenCL driver: loops that core renders as OpenCL C."""
