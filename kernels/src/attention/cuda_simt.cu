// Any dtypes, strides and head_dim in f32: a warp for each row of queries. And the merge of groups for every kernel.

SINEW_KERNEL_BOUNDS(attention_simt, AttentionParams, 128, 1) {
    SINEW_SHARED(float, smem);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    // Each lane holds every 32nd of the sums of a group and of all groups before it; all read the query.
    float* query = smem + warp * 3 * p.head_dim;
    float* sums = query + p.head_dim;
    float* total = sums + p.head_dim;
    u32 s = blockIdx.x / p.row_tiles, row = blockIdx.x % p.row_tiles * warps + warp;
    Sequence sequence = sequence_at(p, s);
    if (row >= u32(sequence.query_len) * p.query_group) return;
    u32 kv_head = blockIdx.y, head = kv_head * p.query_group + row % p.query_group;
    u32 token = sequence.query_start + row / p.query_group;
    Visible seen = visible(p, sequence, row / p.query_group);
    for (u32 d = lane; d < p.head_dim; d += 32) {
        float x = load(p.q, p.q_type, i64(token) * p.q_token + i64(head) * p.q_head + i64(d) * p.q_d);
        query[d] = p.flags & ROUND ? widen_bf16(narrow_bf16(x)) : x;
        total[d] = 0;
    }
    float total_max = -INFINITY, total_weights = 0;
    bool split = p.flags & SPLIT;
    u32 groups = split ? blockIdx.z + 1 : (seen.to + ATTENTION_GROUP - 1) / ATTENTION_GROUP;
    for (u32 group = split ? blockIdx.z : seen.from / ATTENTION_GROUP; group < groups; group++) {
        for (u32 d = lane; d < p.head_dim; d += 32) sums[d] = 0;
        __syncwarp();
        float max = -INFINITY, weights = 0;
        u32 from = group * ATTENTION_GROUP, to = from + ATTENTION_GROUP;
        to = to < u32(seen.to) ? to : u32(seen.to);
        // Tiles of 32 keys at absolute positions, so that the bits do not depend on where a window begins.
        u32 first = u32(seen.from) / 32 * 32;
        for (u32 tile = from > first ? from : first; tile < to; tile += 32) {
            u32 key = tile + lane;
            bool there = key >= u32(seen.from) && key < to;
            i64 block = 0, place = 0;
            there = there && find_key(p, s, sequence, key, block, place);
            i64 v_at = block * p.v_block + i64(kv_head) * p.v_head + place * p.v_token;
            float value = -INFINITY;
            if (there) {
                i64 k_at = block * p.k_block + i64(kv_head) * p.k_head + place * p.k_token;
                float dot = 0;
                for (u32 d = 0; d < p.head_dim; d++) {
                    dot = fmaf(query[d], load(p.k, p.kv_type, k_at + i64(d) * p.k_d), dot);
                }
                value = score(p, dot, token, head, key);
            }
            float tile_max = value;
            for (u32 step = 16; step > 0; step /= 2) {
                tile_max = fmaxf(tile_max, __shfl_xor_sync(FULL_WARP, tile_max, step));
            }
            float now = fmaxf(max, tile_max), factor = decay(max, now);
            float mine = weight(value, now == -INFINITY ? 0.0f : now);
            float sum = mine;
            for (u32 step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, step);
            weights = fmaf(weights, factor, sum);
            max = now;
            float rounded = p.flags & ROUND ? widen_bf16(narrow_bf16(mine)) : mine;
            u32 present = __ballot_sync(FULL_WARP, value != -INFINITY);
            for (u32 d0 = 0; d0 < p.head_dim; d0 += 32) {
                u32 d = d0 + lane;
                float acc = d < p.head_dim ? sums[d] * factor : 0;
                for (u32 j = 0; j < 32; j++) {
                    float w = __shfl_sync(FULL_WARP, rounded, j);
                    i64 at = __shfl_sync(FULL_WARP, v_at, j);
                    if (present >> j & 1 && d < p.head_dim) {
                        acc = fmaf(w, load(p.v, p.kv_type, at + i64(d) * p.v_d), acc);
                    }
                }
                if (d < p.head_dim) sums[d] = acc;
            }
        }
        if (split) {
            float* out = partial(p, token, head, group);
            if (lane == 0) out[0] = max, out[1] = weights;
            for (u32 d = lane; d < p.head_dim && weights != 0.0f; d += 32) out[2 + d] = sums[d];
            return;
        }
        Merge by = merge(total_max, max);
        total_max = by.m;
        total_weights = merged(by, total_weights, weights);
        for (u32 d = lane; d < p.head_dim; d += 32) total[d] = merged(by, total[d], sums[d]);
    }
    total_weights = with_sink(p, head, total_max, total_weights);
    for (u32 d = lane; d < p.head_dim; d += 32) {
        i64 at = i64(token) * p.o_token + i64(head) * p.o_head + i64(d) * p.o_d;
        store(p.o, p.o_type, at, weighted_mean(total[d], total_weights));
    }
}

// Merges the groups of each row in order. A group without a key that the row sees left no values.
SINEW_KERNEL_BOUNDS(attention_merge, AttentionParams, 128, 1) {
    u32 token = blockIdx.x, head = blockIdx.y;
    for (u32 d = threadIdx.x; d < p.head_dim; d += blockDim.x) {
        float max = -INFINITY, weights = 0, sum = 0;
        for (u32 group = 0; group < p.groups; group++) {
            const float* from = partial(p, token, head, group);
            Merge by = merge(max, from[0]);
            max = by.m;
            sum = merged(by, sum, from[1] == 0.0f ? 0.0f : from[2 + d]);
            weights = merged(by, weights, from[1]);
        }
        i64 at = i64(token) * p.o_token + i64(head) * p.o_head + i64(d) * p.o_d;
        store(p.o, p.o_type, at, weighted_mean(sum, with_sink(p, head, max, weights)));
    }
}
