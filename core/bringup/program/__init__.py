"""The program level: kernels and op calls over planned buffers."""
