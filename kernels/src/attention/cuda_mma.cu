// Flash attention on tensor cores, over bf16 keys and values.
//
// A block takes 16 rows of queries per warp, a row being a token and one of the heads that share keys, and goes through
// the keys by tiles of 64. Of a tile, keys arrive while the tile before is weighed, values while scores are computed.

constexpr u32 ATTENTION_TILE = 64;

// Where a run of 8 values lies in rows of `RUNS` runs, so that the rows that `ldmatrix` reads together fall into
// different banks.
template <u32 RUNS>
DEVICE u32 run_place(u32 row, u32 run) {
    return (row * RUNS + (run ^ (row & 7))) * 8;
}

// The keys of a tile that some row of the block sees, to shared memory. Others are zero and are never read.
template <u32 HEAD_DIM, u32 WARPS>
DEVICE void fetch_tile(const AttentionParams& p, u32 s, const Sequence& sequence, u32 tile, Visible reach,
                                  bool values, u16* to) {
    constexpr u32 RUNS = HEAD_DIM / 8;
    Ptr base = values ? p.v : p.k;
    i64 step = values ? p.v_d : p.k_d;
    for (u32 i = threadIdx.x; i < ATTENTION_TILE * RUNS; i += WARPS * 32) {
        u32 row = i / RUNS, run = i % RUNS, key = tile + row;
        u16* place = to + run_place<RUNS>(row, run);
        i64 block = 0, token = 0;
        bool there = key >= u32(reach.from) && key < u32(reach.to) && run * 8 < p.head_dim;
        there = there && find_key(p, s, sequence, key, block, token);
        i64 at = values ? block * p.v_block + i64(blockIdx.y) * p.v_head + token * p.v_token
                        : block * p.k_block + i64(blockIdx.y) * p.k_head + token * p.k_token;
        if (p.flags & WHOLE) {
            cp_async_16(place, (const void*)(base + (there ? (at + run * 8) * 2 : 0)), there);
            continue;
        }
        u32 words[4] = {};
#pragma unroll
        for (u32 e = 0; e < 8; e++) {
            u32 d = run * 8 + e;
            u32 bits = there && d < p.head_dim ? ((const u16*)base)[at + i64(d) * step] : 0;
            words[e / 2] |= bits << (e % 2 * 16);
        }
        *(uint4*)place = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

DEVICE bool is_finite_bf16(u32 bits) {
    return (bits & 0x7f80u) != 0x7f80u;
}

// The same pair with zeros in place of what is not finite.
DEVICE u32 finite_pair(u32 pair) {
    return (is_finite_bf16(pair) ? pair & 0xffffu : 0) | (is_finite_bf16(pair >> 16) ? pair & 0xffff0000u : 0);
}

// Adds weighted values that are not finite to the rows that see them, and to no others. Uses the weights up: they move
// forward, because registers have no index.
template <u32 HEAD_DIM>
DEVICE void add_infinite(const u16* values, float weights[8][4], float sums[HEAD_DIM / 8][4]) {
    const u32 lane = threadIdx.x % 32;
    for (u32 key = 0; key < ATTENTION_TILE; key++) {
        const u32 from = lane / 4 * 4 + key % 8 / 2;
        const float low = __shfl_sync(FULL_WARP, key % 2 ? weights[0][1] : weights[0][0], from);
        const float high = __shfl_sync(FULL_WARP, key % 2 ? weights[0][3] : weights[0][2], from);
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 8; i++) {
            const u16* pair = values + run_place<HEAD_DIM / 8>(key, i) + lane % 4 * 2;
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
                if (is_finite_bf16(pair[e])) continue;
                const float value = widen_bf16(pair[e]);
                if (low != 0.0f) sums[i][e] = fmaf(low, value, sums[i][e]);
                if (high != 0.0f) sums[i][2 + e] = fmaf(high, value, sums[i][2 + e]);
            }
        }
        if (key % 8 != 7) continue;
#pragma unroll
        for (u32 j = 0; j < 7; j++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) weights[j][e] = weights[j + 1][e];
        }
    }
}

template <u32 HEAD_DIM, u32 WARPS>
DEVICE void attention_mma(const AttentionParams& p) {
    constexpr u32 RUNS = HEAD_DIM / 8, ROWS = WARPS * 16, THREADS = WARPS * 32;
    SINEW_SHARED(unsigned char, smem);
    u16* queries = (u16*)smem;
    u16* keys = queries + ROWS * HEAD_DIM;
    u16* values = keys + ATTENTION_TILE * HEAD_DIM;
    // Sums of all groups before the current one, each thread's own, one after another of all threads.
    float* total = (float*)(values + ATTENTION_TILE * HEAD_DIM) + threadIdx.x;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 s = blockIdx.x / p.row_tiles, tile_of_rows = blockIdx.x % p.row_tiles;
    Sequence sequence = sequence_at(p, s);
    u32 count = u32(sequence.query_len) * p.query_group, row0 = tile_of_rows * ROWS;
    if (row0 >= count) return;
    u32 last = (row0 + ROWS < count ? row0 + ROWS : count) - 1;
    Visible begin = visible(p, sequence, row0 / p.query_group), end = visible(p, sequence, last / p.query_group);
    Visible reach = {begin.from, end.to};

    for (u32 i = threadIdx.x; i < ROWS * HEAD_DIM; i += THREADS) {
        u32 row = row0 + i / HEAD_DIM, d = i % HEAD_DIM;
        float x = 0;
        if (row <= last && d < p.head_dim) {
            i64 token = sequence.query_start + row / p.query_group;
            i64 head = blockIdx.y * p.query_group + row % p.query_group;
            x = load(p.q, p.q_type, token * p.q_token + head * p.q_head + i64(d) * p.q_d);
        }
        queries[run_place<RUNS>(i / HEAD_DIM, d / 8) + d % 8] = narrow_bf16(x);
    }

    // The two rows of which this thread holds scores and sums.
    u32 token[2], head[2];
    Visible seen[2];
    float max[2], weights[2], total_max[2], total_weights[2];
#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        u32 row = row0 + warp * 16 + r * 8 + lane / 4;
        token[r] = sequence.query_start + row / p.query_group;
        head[r] = blockIdx.y * p.query_group + row % p.query_group;
        seen[r] = row <= last ? visible(p, sequence, row / p.query_group) : Visible{0, 0};
        total_max[r] = -INFINITY;
        total_weights[r] = 0;
    }
    bool split = p.flags & SPLIT;
    u32 first_tile = reach.from / ATTENTION_TILE, tiles = (reach.to + ATTENTION_TILE - 1) / ATTENTION_TILE;
    constexpr u32 GROUP_TILES = ATTENTION_GROUP / ATTENTION_TILE;
    if (split) {
        u32 from = blockIdx.z * GROUP_TILES;
        first_tile = first_tile > from ? first_tile : from;
        tiles = tiles < from + GROUP_TILES ? tiles : from + GROUP_TILES;
    }
    u32 depth = (p.head_dim + 15) / 16;
    float sums[HEAD_DIM / 8][4];
    bool fresh = true, merged_before = false;

    if (first_tile < tiles) {
        fetch_tile<HEAD_DIM, WARPS>(p, s, sequence, first_tile * ATTENTION_TILE, reach, false, keys);
    }
    cp_async_commit();
    for (u32 t = first_tile; t < tiles; t++) {
        u32 tile = t * ATTENTION_TILE;
        if (fresh) {
            fresh = false;
#pragma unroll
            for (u32 i = 0; i < HEAD_DIM / 8; i++) {
#pragma unroll
                for (u32 e = 0; e < 4; e++) sums[i][e] = 0;
            }
            max[0] = max[1] = -INFINITY;
            weights[0] = weights[1] = 0;
        }
        cp_async_wait<0>();
        __syncthreads();
        fetch_tile<HEAD_DIM, WARPS>(p, s, sequence, tile, reach, true, values);
        cp_async_commit();

        float scores[8][4] = {};
#pragma unroll
        for (u32 d = 0; d < HEAD_DIM / 16; d++) {
            if (d >= depth) break;
            u32 q[4];
            ldmatrix_x4(q, queries + run_place<RUNS>(warp * 16 + lane % 16, d * 2 + lane / 16));
#pragma unroll
            for (u32 j = 0; j < 4; j++) {
                u32 k[4];
                ldmatrix_x4(k, keys + run_place<RUNS>(j * 16 + lane / 16 * 8 + lane % 8, d * 2 + lane / 8 % 2));
                mma_m16n8k16_bf16(scores[2 * j], q, k);
                mma_m16n8k16_bf16(scores[2 * j + 1], q, k + 2);
            }
        }
        __syncthreads();
        if (t + 1 < tiles) {
            fetch_tile<HEAD_DIM, WARPS>(p, s, sequence, tile + ATTENTION_TILE, reach, false, keys);
        }
        cp_async_commit();

        float factor[2];
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            float now = max[r];
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    i32 key = tile + j * 8 + lane % 4 * 2 + e;
                    float& x = scores[j][2 * r + e];
                    x = key >= seen[r].from && key < seen[r].to ? score(p, x, token[r], head[r], key) : -INFINITY;
                    now = fmaxf(now, x);
                }
            }
            now = fmaxf(now, __shfl_xor_sync(FULL_WARP, now, 1));
            now = fmaxf(now, __shfl_xor_sync(FULL_WARP, now, 2));
            factor[r] = decay(max[r], now);
            max[r] = now;
            float base = now == -INFINITY ? 0.0f : now, sum = 0;
#pragma unroll
            for (u32 j = 0; j < 8; j++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    float& x = scores[j][2 * r + e];
                    x = weight(x, base);
                    sum += x;
                }
            }
            weights[r] = fmaf(weights[r], factor[r], sum);
        }
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 8; i++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) sums[i][e] *= factor[e / 2];
        }

        // Where some row of the block does not see all of the tile, 0 times what is not finite must not reach it.
        bool careful = p.flags & MASKED || i32(tile) < end.from || i32(tile + ATTENTION_TILE) > begin.to;
        bool infinite = false;
        cp_async_wait<1>();
        __syncthreads();
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 w[4] = {pack_bf16(scores[2 * j][0], scores[2 * j][1]), pack_bf16(scores[2 * j][2], scores[2 * j][3]),
                        pack_bf16(scores[2 * j + 1][0], scores[2 * j + 1][1]),
                        pack_bf16(scores[2 * j + 1][2], scores[2 * j + 1][3])};
#pragma unroll
            for (u32 d = 0; d < HEAD_DIM / 16; d++) {
                if (d >= depth) break;
                u32 v[4];
                ldmatrix_x4_trans(v, values + run_place<RUNS>(j * 16 + lane % 16, d * 2 + lane / 16));
                if (careful) {
#pragma unroll
                    for (u32 e = 0; e < 4; e++) {
                        u32 pair = finite_pair(v[e]);
                        infinite |= pair != v[e];
                        v[e] = pair;
                    }
                }
                mma_m16n8k16_bf16(sums[2 * d], w, v);
                mma_m16n8k16_bf16(sums[2 * d + 1], w, v + 2);
            }
        }
        if (careful && __ballot_sync(FULL_WARP, infinite) != 0) add_infinite<HEAD_DIM>(values, scores, sums);

        if ((t + 1) % GROUP_TILES != 0 && t + 1 < tiles) continue;
        fresh = true;
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            weights[r] += __shfl_xor_sync(FULL_WARP, weights[r], 1);
            weights[r] += __shfl_xor_sync(FULL_WARP, weights[r], 2);
        }
        if (split) break;
        Merge by[2];
#pragma unroll
        for (u32 r = 0; r < 2; r++) {
            by[r] = merge(total_max[r], max[r]);
            total_max[r] = by[r].m;
            total_weights[r] = merged(by[r], total_weights[r], weights[r]);
        }
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 8; i++) {
#pragma unroll
            for (u32 e = 0; e < 4; e++) {
                float& before = total[(i * 4 + e) * THREADS];
                sums[i][e] = merged(by[e / 2], merged_before ? before : 0.0f, sums[i][e]);
                if (t + 1 < tiles) before = sums[i][e];
            }
        }
        merged_before = true;
    }
    cp_async_wait<0>();

#pragma unroll
    for (u32 r = 0; r < 2; r++) {
        if (row0 + warp * 16 + r * 8 + lane / 4 > last) continue;
        bool any = first_tile < tiles;
        if (split) {
            float* out = partial(p, token[r], head[r], blockIdx.z);
            if (lane % 4 == 0) {
                out[0] = any ? max[r] : -INFINITY;
                out[1] = any ? weights[r] : 0.0f;
            }
            if (!any || weights[r] == 0.0f) continue;
#pragma unroll
            for (u32 i = 0; i < HEAD_DIM / 8; i++) {
#pragma unroll
                for (u32 e = 0; e < 2; e++) {
                    u32 d = i * 8 + lane % 4 * 2 + e;
                    if (d < p.head_dim) out[2 + d] = sums[i][2 * r + e];
                }
            }
            continue;
        }
        total_weights[r] = with_sink(p, head[r], total_max[r], total_weights[r]);
#pragma unroll
        for (u32 i = 0; i < HEAD_DIM / 8; i++) {
#pragma unroll
            for (u32 e = 0; e < 2; e++) {
                u32 d = i * 8 + lane % 4 * 2 + e;
                if (d >= p.head_dim) continue;
                i64 at = i64(token[r]) * p.o_token + i64(head[r]) * p.o_head + i64(d) * p.o_d;
                store(p.o, p.o_type, at, any ? weighted_mean(sums[i][2 * r + e], total_weights[r]) : 0.0f);
            }
        }
    }
}

SINEW_KERNEL_BOUNDS(attention_64_64, AttentionParams, 128, 1) { attention_mma<64, 4>(p); }
SINEW_KERNEL_BOUNDS(attention_128_64, AttentionParams, 128, 1) { attention_mma<128, 4>(p); }
SINEW_KERNEL_BOUNDS(attention_256_64, AttentionParams, 128, 1) { attention_mma<256, 4>(p); }
SINEW_KERNEL_BOUNDS(attention_64_16, AttentionParams, 32, 1) { attention_mma<64, 1>(p); }
SINEW_KERNEL_BOUNDS(attention_128_16, AttentionParams, 32, 1) { attention_mma<128, 1>(p); }
SINEW_KERNEL_BOUNDS(attention_256_16, AttentionParams, 32, 1) { attention_mma<256, 1>(p); }
