"""The products of products.py, `[m, n, k]` of x [m, k] · Wᵀ with W [n, k]: layers of Qwen2.5-0.5B, squares, few rows."""

SHAPES = [
    (512, 4864, 896), (512, 896, 4864), (512, 896, 896), (512, 151936, 896), (1024, 1024, 1024), (2048, 2048, 2048),
    (4096, 4096, 4096), (1, 4864, 896), (1, 896, 4864), (1, 151936, 896), (1, 8192, 2048), (2, 4864, 896),
    (4, 4864, 896), (8, 4864, 896), (16, 4864, 896),
]
# Up to so many rows weights are rotated over so many bytes, as they come from memory in a model.
FEW_ROWS = 16
ROTATE = 256 << 20
