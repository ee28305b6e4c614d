// Tiles of every product.

SINEW_KERNEL_BOUNDS(gemm_simt, GemmParams, 256, 2) {
    const u32 row_tiles = (p.rows + SIMT_TILE - 1) / SIMT_TILE;
    const u32 row0 = blockIdx.x % row_tiles * SIMT_TILE, n0 = blockIdx.x / row_tiles * SIMT_TILE;
    for (u32 group = blockIdx.z; group < p.groups; group += gridDim.z) simt_tile(p, group, p.rows, row0, n0);
}
