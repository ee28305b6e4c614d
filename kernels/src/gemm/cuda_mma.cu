// Tiles of every product.

template <u32 TILE_M, u32 TILE_N, u32 WARPS_M, u32 WARPS_N, u32 STAGES, bool BF16>
DEVICE void gemm_mma(const GemmParams& p) {
    const u32 row_tiles = (p.rows + TILE_M - 1) / TILE_M;
    const u32 row0 = blockIdx.x % row_tiles * TILE_M, n0 = blockIdx.x / row_tiles * TILE_N;
    for (u32 group = blockIdx.z; group < p.groups; group += gridDim.z) {
        mma_tile<TILE_M, TILE_N, WARPS_M, WARPS_N, STAGES, BF16>(p, group, p.rows, row0, n0);
    }
}

SINEW_KERNEL_BOUNDS(gemm_bf16_128, GemmParams, 256, 1) { gemm_mma<128, 128, 2, 4, 3, true>(p); }
SINEW_KERNEL_BOUNDS(gemm_bf16_64, GemmParams, 128, 2) { gemm_mma<64, 64, 2, 2, 4, true>(p); }
SINEW_KERNEL_BOUNDS(gemm_bf16_16, GemmParams, 128, 4) { gemm_mma<16, 64, 1, 4, 4, true>(p); }
SINEW_KERNEL_BOUNDS(gemm_f16_128, GemmParams, 256, 1) { gemm_mma<128, 128, 2, 4, 3, false>(p); }
SINEW_KERNEL_BOUNDS(gemm_f16_64, GemmParams, 128, 2) { gemm_mma<64, 64, 2, 2, 4, false>(p); }
SINEW_KERNEL_BOUNDS(gemm_f16_16, GemmParams, 128, 4) { gemm_mma<16, 64, 1, 4, 4, false>(p); }
