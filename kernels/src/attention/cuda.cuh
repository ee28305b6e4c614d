// What the kernels of attention share: which keys a row of queries sees, where they lie, and how groups are merged.

constexpr u32 ATTENTION_GROUP = 512;

enum AttentionFlags : u32 {
    CAUSAL = 1,
    PAGED = 2,
    MASKED = 4,
    BOOLEAN = 8,
    SOFTCAP = 16,
    ROUND = 32,
    // Keys and values are contiguous along head_dim, which is a multiple of 8, and start at multiples of 16 bytes.
    WHOLE = 64,
    // Each group of keys leaves its own result in the workspace.
    SPLIT = 128,
    SINKS = 256,
};

struct AttentionParams {
    Ptr q, k, v, o, query_start, kv_len, table, mask, sinks, partials, status;
    // Strides in elements. Keys and values: of blocks, heads and tokens of a block, or of nothing, heads and tokens.
    i64 q_token, q_head, q_d;
    i64 o_token, o_head, o_d;
    i64 k_block, k_head, k_token, k_d;
    i64 v_block, v_head, v_token, v_d;
    i64 query_start_step, kv_len_step;
    i64 table_sequence, table_block;
    i64 mask_head, mask_token, mask_key;
    i64 sinks_step;
    // Keys further back than this are not seen; 0 where there is no window.
    i64 window;
    u32 sequences, tokens, max_query, max_kv;
    u32 num_heads, num_kv_heads, head_dim, query_group;
    // Blocks or, where dense, keys that there are; columns of the block table.
    u32 blocks, block_size, table_columns, groups;
    // Blocks of rows of a sequence.
    u32 row_tiles;
    u32 q_type, kv_type, o_type, mask_type;
    u32 flags;
    float scale, softcap;
};

// One sequence of a call. One whose metadata is not to be trusted has no queries.
struct Sequence {
    i32 query_start, query_len, kv_len;
    i64 kv_start;
};

DEVICE i32 metadata(Ptr of, i64 step, u32 at) {
    return ((const i32*)of)[i64(at) * step];
}

DEVICE Sequence sequence_at(const AttentionParams& p, u32 s) {
    Sequence none = {0, 0, 0, 0};
    i32 start = metadata(p.query_start, p.query_start_step, s);
    i32 end = metadata(p.query_start, p.query_start_step, s + 1);
    if ((s == 0 && start != 0) || (s + 1 == p.sequences && end != i32(p.tokens)) || start < 0 || end < start ||
        end > i32(p.tokens) || end - start > i32(p.max_query)) {
        report(p.status, start < 0 || (s == 0 && start != 0) ? start : end);
        return none;
    }
    i64 kv_start = 0;
    for (u32 before = 0; before < s && !(p.flags & PAGED); before++) {
        i32 len = metadata(p.kv_len, p.kv_len_step, before);
        // A negative length before this one must not bring the sum back into range.
        kv_start = len < 0 ? i64(p.blocks) + 1 : kv_start + len;
    }
    i32 kv_len = metadata(p.kv_len, p.kv_len_step, s);
    const bool fits = kv_len >= 0 && kv_len <= i32(p.max_kv) && (!(p.flags & CAUSAL) || end - start <= kv_len);
    if (!fits || (!(p.flags & PAGED) && kv_start + kv_len > i64(p.blocks))) {
        // A length, or where keys would end.
        report(p.status, fits ? kv_start + kv_len : kv_len);
        return none;
    }
    return {start, end - start, kv_len, kv_start};
}

// The keys `from..to` that query `token` of a sequence sees, if no mask forbids them.
struct Visible {
    i32 from, to;
};

DEVICE Visible visible(const AttentionParams& p, const Sequence& s, i32 token) {
    i64 position = i64(s.kv_len) - s.query_len + token;
    i64 to = p.flags & CAUSAL ? position + 1 : p.window > 0 ? position + p.window : s.kv_len;
    to = to < 0 ? 0 : to > s.kv_len ? s.kv_len : to;
    i64 from = p.window > 0 ? position + 1 - p.window : 0;
    from = from < 0 ? 0 : from > to ? to : from;
    return {i32(from), i32(to)};
}

// Where a key that some token sees lies: its block and its place there. False where the block table is wrong.
DEVICE bool find_key(const AttentionParams& p, u32 s, const Sequence& sequence, u32 key, i64& block,
                     i64& token) {
    if (!(p.flags & PAGED)) {
        block = 0;
        token = sequence.kv_start + key;
        return true;
    }
    u32 column = key / p.block_size;
    u32 id = p.blocks;
    if (column < p.table_columns) {
        id = ((const u32*)p.table)[i64(s) * p.table_sequence + i64(column) * p.table_block];
    }
    if (id >= p.blocks) {
        report(p.status, column < p.table_columns ? id : column);
        return false;
    }
    block = id;
    token = key % p.block_size;
    return true;
}

// The score of a dot product; -inf where the mask forbids the key.
DEVICE float score(const AttentionParams& p, float dot, u32 token, u32 head, u32 key) {
    float s = dot * p.scale;
    if (p.flags & SOFTCAP) s = p.softcap * tanhf(s / p.softcap);
    if (p.flags & MASKED) {
        i64 at = i64(head) * p.mask_head + i64(token) * p.mask_token + i64(key) * p.mask_key;
        if (!(p.flags & BOOLEAN)) return s + load(p.mask, p.mask_type, at);
        if (((const unsigned char*)p.mask)[at] == 0) return -INFINITY;
    }
    return s;
}

// The weight of a score below the maximum `m`. A key that is not seen, or whose score is -inf, adds nothing.
DEVICE float weight(float s, float m) {
    return s == -INFINITY ? 0.0f : expf(s - m);
}

// The factor of what was summed below an earlier maximum. Without any key yet nothing was summed, or NaN.
DEVICE float decay(float before, float now) {
    return now == -INFINITY ? 1.0f : expf(before - now);
}

// Factors by which a group is merged into all those before it.
struct Merge {
    float m, total, group;
};

DEVICE Merge merge(float total_max, float group_max) {
    float m = fmaxf(total_max, group_max);
    return {m, decay(total_max, m), decay(group_max, m)};
}

DEVICE float merged(const Merge& by, float total, float group) {
    return fmaf(total, by.total, group * by.group);
}

// The sum of weights of a row that ends, with what its head's sink adds to it, unless there is no key.
DEVICE float with_sink(const AttentionParams& p, u32 head, float max, float weights) {
    if (!(p.flags & SINKS) || weights == 0.0f) return weights;
    return weights + expf(((const float*)p.sinks)[i64(head) * p.sinks_step] - max);
}

// A row's result: without a key that it sees, zero.
DEVICE float weighted_mean(float sum, float weights) {
    return weights == 0.0f ? 0.0f : sum / weights;
}

// A row's partial result of a group: maximum, sum of weights, sum of weighted values.
DEVICE float* partial(const AttentionParams& p, u32 token, u32 head, u32 group) {
    i64 at = (i64(token) * p.num_heads + head) * p.groups + group;
    return (float*)p.partials + at * (2 + p.head_dim);
}
