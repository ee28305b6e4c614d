// The k largest of a row, a block for each: the k-th is found digit by digit (radix select), what is no smaller is
// collected, and each finds its place by counting those before it.

struct TopkParams {
    Strided<3> rows;  // values, indices, x
    // From element to element of a row.
    i64 steps[3];
    u64 width, k;
    // k keys for each row.
    Ptr keys;
};

#define DIGIT_BITS 11
#define DIGITS (1u << DIGIT_BITS)

// Orders as the values do, with -0 equal to 0 and every NaN above all; of equals the lower index comes first. No two
// elements of a row have one key.
DEVICE u64 key(float x, u64 index) {
    const u32 order = x != x ? ~0u : x == 0.0f ? 0x80000000u : ordered_key(x);
    return u64(order) << 32 | u64(~u32(index));
}

SINEW_KERNEL_BOUNDS(topk, TopkParams, 1024, 1) {
    __shared__ u32 counts[DIGITS];
    __shared__ u32 lane_counts[WARP];
    __shared__ u32 digit, above, taken;
    for (u64 row = blockIdx.x; row < p.rows.elements; row += gridDim.x) {
        i64 at[3];
        locate(p.rows, row, at);
        const auto key_of = [&](u64 i) {
            return key(load(p.rows.pointers[2], p.rows.types[2], at[2] + i64(i) * p.steps[2]), i);
        };
        // The smallest key that is taken, from its highest digit on, and how many are still to be taken among those
        // that begin with the digits so far.
        u64 prefix = 0, wanted = p.k;
        u32 shift = 64;
        while (true) {
            const u32 bits = min(shift, u32(DIGIT_BITS)), before = shift;
            shift -= bits;
            for (u32 i = threadIdx.x; i < DIGITS; i += blockDim.x) counts[i] = 0;
            __syncthreads();
            for (u64 i = threadIdx.x; i < p.width; i += blockDim.x) {
                const u64 found = key_of(i);
                if (before == 64 || found >> before == prefix)
                    atomicAdd(&counts[found >> shift & ((1u << bits) - 1)], 1u);
            }
            __syncthreads();
            if (threadIdx.x < WARP) {
                u32 sum = 0;
                for (u32 i = 0; i < DIGITS / WARP; ++i) sum += counts[threadIdx.x * (DIGITS / WARP) + i];
                lane_counts[threadIdx.x] = sum;
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                u32 larger = 0, part = WARP - 1;
                while (larger + lane_counts[part] < wanted) larger += lane_counts[part--];
                u32 d = (part + 1) * (DIGITS / WARP) - 1;
                while (larger + counts[d] < wanted) larger += counts[d--];
                digit = d, above = larger;
            }
            __syncthreads();
            prefix = prefix << bits | digit;
            wanted -= above;
            const bool all = counts[digit] == wanted;
            // The next round writes what this one has read.
            __syncthreads();
            if (all) break;
        }

        if (threadIdx.x == 0) taken = 0;
        __syncthreads();
        u64* const keys = at_mut<u64>(p.keys, i64(row * p.k));
        for (u64 i = threadIdx.x; i < p.width; i += blockDim.x) {
            const u64 found = key_of(i);
            if (found >> shift >= prefix) keys[atomicAdd(&taken, 1u)] = found;
        }
        __syncthreads();
        for (u64 i = threadIdx.x; i < p.k; i += blockDim.x) {
            const u64 mine = keys[i];
            i64 place = 0;
            for (u64 j = 0; j < p.k; ++j) place += keys[j] > mine;
            const i64 index = i64(~u32(mine));
            const u32 size = p.rows.types[0] == F32 ? 4 : 2;
            const i64 to = at[0] + place * p.steps[0], from = at[2] + index * p.steps[2];
            copy_element(p.rows.pointers[0], to, p.rows.pointers[2], from, size);
            store_index(p.rows.pointers[1], p.rows.types[1], at[1] + place * p.steps[1], index);
        }
        __syncthreads();
    }
}
