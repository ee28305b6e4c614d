// Tiles of groups on tensor cores.

template <u32 TILE_M, u32 TILE_N, u32 WARPS_M, u32 WARPS_N, u32 STAGES, bool BF16>
DEVICE void grouped_mma(const GroupedParams& p) {
    const GroupedPlace at = grouped_place(p, TILE_M, TILE_N);
    if (at.group >= p.num_groups) return;
    mma_tile<TILE_M, TILE_N, WARPS_M, WARPS_N, STAGES, BF16>(p.product, at.group, at.end, at.row, at.n);
}

SINEW_KERNEL_BOUNDS(grouped_bf16_64, GroupedParams, 128, 2) { grouped_mma<64, 64, 2, 2, 4, true>(p); }
SINEW_KERNEL_BOUNDS(grouped_bf16_16, GroupedParams, 128, 3) { grouped_mma<16, 64, 1, 4, 4, true>(p); }
SINEW_KERNEL_BOUNDS(grouped_f16_64, GroupedParams, 128, 2) { grouped_mma<64, 64, 2, 2, 4, false>(p); }
SINEW_KERNEL_BOUNDS(grouped_f16_16, GroupedParams, 128, 3) { grouped_mma<16, 64, 1, 4, 4, false>(p); }
