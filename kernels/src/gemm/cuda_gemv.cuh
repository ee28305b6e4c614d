// Few rows: a warp reads the weights of a pair of columns once, 16 bytes per lane at a time, and multiplies them with
// every row. A lane's values lie 32 times its width apart whatever the alignment, so that the bits do not depend on it.

constexpr u32 GEMV_WARPS = 4;
constexpr u32 GEMV_DEPTH = 1024;
// Columns of a block.
constexpr u32 GEMV_COLUMNS = GEMV_WARPS * 2;

// As many values as 16 bytes of the weights' type hold.
template <u32 WIDTH>
DEVICE void gemv_weights(const GemmParams& p, i64 column, u32 k, float out[WIDTH]) {
    if (p.flags & WHOLE_B) {
        const uint4 raw = *(const uint4*)(p.b + (column + k) * (16 / WIDTH));
        const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
        for (u32 i = 0; i < WIDTH; i++) {
            if constexpr (WIDTH == 4) {
                out[i] = float_of(words[i]);
            } else {
                u16 bits = u16(words[i / 2] >> (i % 2 * 16));
                out[i] = p.b_type == F16 ? widen_f16(bits) : widen_bf16(bits);
            }
        }
    } else {
        for (u32 i = 0; i < WIDTH; i++) {
            out[i] = k + i < p.k ? load(p.b, p.b_type, column + i64(k + i) * p.b_k) : 0;
        }
    }
#pragma unroll
    for (u32 i = 0; i < WIDTH; i++) out[i] = rounded(out[i], p.flags & ROUND_B);
}

// Up to ROWS rows from `row0` on that are below `rows`, and the columns of a block.
template <u32 WIDTH, u32 ROWS>
DEVICE void gemv_tile(const GemmParams& p, u32 group, u32 rows, u32 row0, u32 columns_at) {
    __shared__ float left[ROWS][GEMV_DEPTH];
    const u32 lane = threadIdx.x % 32, n = columns_at + threadIdx.x / 32 * 2;
    i64 columns[2] = {column_offset(p, group, n), column_offset(p, group, n + 1)};
    float sums[ROWS][2] = {};
    for (u32 k0 = 0; k0 < p.k; k0 += GEMV_DEPTH) {
        for (u32 r = 0; r < ROWS; r++) {
            i64 at = row0 + r < rows ? row_offset(p, group, row0 + r, p.a_batch, p.a_row) : -1;
            for (u32 k = threadIdx.x; k < GEMV_DEPTH; k += GEMV_WARPS * 32) {
                bool there = at >= 0 && k0 + k < p.k;
                left[r][k] = there ? rounded(load(p.a, p.a_type, at + i64(k0 + k) * p.a_k), p.flags & ROUND_A) : 0;
            }
        }
        __syncthreads();
        for (u32 k = lane * WIDTH; k < GEMV_DEPTH && k0 + k < p.k; k += 32 * WIDTH) {
#pragma unroll
            for (u32 c = 0; c < 2; c++) {
                if (n + c >= p.n) break;
                float weights[WIDTH];
                gemv_weights<WIDTH>(p, columns[c], k0 + k, weights);
#pragma unroll
                for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
                    for (u32 i = 0; i < WIDTH; i++) sums[r][c] = fmaf(left[r][k + i], weights[i], sums[r][c]);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
#pragma unroll
        for (u32 c = 0; c < 2; c++) {
            for (u32 step = 16; step > 0; step /= 2) {
                sums[r][c] += __shfl_xor_sync(FULL_WARP, sums[r][c], step);
            }
        }
        if (lane == r) finish_pair(p, group, rows, row0 + r, n, sums[r][0], sums[r][1]);
    }
}
