// Tensor cores: 16-bit operands in stages of shared memory, f32 sums in registers.
//
// Every output is the sum of `mma.m16n8k16` over K in order, whatever the tile: the same bits for any number of rows.

constexpr u32 MMA_DEPTH = 32;
// Runs of 8 values, 16 bytes, in a row of a stage.
constexpr u32 MMA_RUNS = MMA_DEPTH / 8;

// Where a run lies in a stage. Eight rows of a matrix that `ldmatrix` reads fall into different banks.
DEVICE u32 mma_place(u32 row, u32 run) {
    return row * MMA_DEPTH + ((run ^ ((row >> 1) & 3)) * 8);
}

// The rows of an operand that one thread brings to shared memory.
template <u32 ROWS, u32 THREADS, bool BF16>
struct MmaSource {
    static constexpr u32 LOADS = (ROWS * MMA_RUNS + THREADS - 1) / THREADS;
    Ptr base;
    u32 type, k;
    i64 step;
    bool whole;
    // The first element of each row; negative for rows that are not there.
    i64 at[LOADS];

    __device__ __forceinline__ void fetch(u16* stage, u32 k0) const {
#pragma unroll
        for (u32 i = 0; i < LOADS; i++) {
            u32 run = threadIdx.x + i * THREADS;
            if (ROWS * MMA_RUNS % THREADS != 0 && run >= ROWS * MMA_RUNS) return;
            u32 from = k0 + run % MMA_RUNS * 8;
            u16* to = stage + mma_place(run / MMA_RUNS, run % MMA_RUNS);
            bool there = at[i] >= 0 && from < k;
            if (whole) {
                cp_async_16(to, (const void*)(base + (there ? (at[i] + from) * 2 : 0)), there);
                continue;
            }
            u32 words[4] = {};
#pragma unroll
            for (u32 e = 0; e < 8; e++) {
                float x = there && from + e < k ? load(base, type, at[i] + i64(from + e) * step) : 0;
                words[e / 2] |= u32(BF16 ? narrow_bf16(x) : narrow_f16(x)) << (e % 2 * 16);
            }
            *(uint4*)to = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
};

// Rows from `row0` on that are below `rows`, and outputs from `n0` on.
template <u32 TILE_M, u32 TILE_N, u32 WARPS_M, u32 WARPS_N, u32 STAGES, bool BF16>
DEVICE void mma_tile(const GemmParams& p, u32 group, u32 rows, u32 row0, u32 n0) {
    constexpr u32 THREADS = WARPS_M * WARPS_N * 32;
    constexpr u32 WARP_M = TILE_M / WARPS_M, WARP_N = TILE_N / WARPS_N;
    constexpr u32 STAGE = (TILE_M + TILE_N) * MMA_DEPTH;
    SINEW_SHARED(unsigned char, smem);
    u16* stages = (u16*)smem;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 warp_row = warp % WARPS_M * WARP_M, warp_column = warp / WARPS_M * WARP_N;
    u32 steps = (p.k + MMA_DEPTH - 1) / MMA_DEPTH;
    MmaSource<TILE_M, THREADS, BF16> a = {p.a, p.a_type, p.k, p.a_k, (p.flags & WHOLE_A) != 0, {}};
    MmaSource<TILE_N, THREADS, BF16> b = {p.b, p.b_type, p.k, p.b_k, (p.flags & WHOLE_B) != 0, {}};
#pragma unroll
    for (u32 i = 0; i < a.LOADS; i++) {
        u32 row = row0 + (threadIdx.x + i * THREADS) / MMA_RUNS;
        a.at[i] = row < rows ? row_offset(p, group, row, p.a_batch, p.a_row) : -1;
    }
#pragma unroll
    for (u32 i = 0; i < b.LOADS; i++) {
        u32 n = n0 + (threadIdx.x + i * THREADS) / MMA_RUNS;
        b.at[i] = n < p.n ? column_offset(p, group, n) : -1;
    }
    float sums[WARP_M / 16][WARP_N / 8][4] = {};
    for (u32 s = 0; s + 1 < STAGES; s++) {
        if (s < steps) {
            a.fetch(stages + s * STAGE, s * MMA_DEPTH);
            b.fetch(stages + s * STAGE + TILE_M * MMA_DEPTH, s * MMA_DEPTH);
        }
        cp_async_commit();
    }
    for (u32 step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        u32 next = step + STAGES - 1;
        if (next < steps) {
            u16* stage = stages + next % STAGES * STAGE;
            a.fetch(stage, next * MMA_DEPTH);
            b.fetch(stage + TILE_M * MMA_DEPTH, next * MMA_DEPTH);
        }
        cp_async_commit();
        const u16* left = stages + step % STAGES * STAGE;
        const u16* right = left + TILE_M * MMA_DEPTH;
#pragma unroll
        for (u32 run = 0; run < MMA_RUNS; run += 2) {
            u32 lines[WARP_M / 16][4], columns[WARP_N / 16][4];
#pragma unroll
            for (u32 i = 0; i < WARP_M / 16; i++) {
                ldmatrix_x4(lines[i], left + mma_place(warp_row + i * 16 + lane % 16, run + lane / 16));
            }
#pragma unroll
            for (u32 j = 0; j < WARP_N / 16; j++) {
                u32 column = warp_column + j * 16 + lane / 16 * 8 + lane % 8;
                ldmatrix_x4(columns[j], right + mma_place(column, run + lane / 8 % 2));
            }
#pragma unroll
            for (u32 i = 0; i < WARP_M / 16; i++) {
#pragma unroll
                for (u32 j = 0; j < WARP_N / 8; j++) {
                    if constexpr (BF16) {
                        mma_m16n8k16_bf16(sums[i][j], lines[i], columns[j / 2] + j % 2 * 2);
                    } else {
                        mma_m16n8k16_f16(sums[i][j], lines[i], columns[j / 2] + j % 2 * 2);
                    }
                }
            }
        }
    }
    cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (u32 i = 0; i < WARP_M / 16; i++) {
#pragma unroll
        for (u32 j = 0; j < WARP_N / 8; j++) {
            u32 row = row0 + warp_row + i * 16 + lane / 4, n = n0 + warp_column + j * 8 + lane % 4 * 2;
            finish_pair(p, group, rows, row, n, sums[i][j][0], sums[i][j][1]);
            finish_pair(p, group, rows, row + 8, n, sums[i][j][2], sums[i][j][3]);
        }
    }
}
