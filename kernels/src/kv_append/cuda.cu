// New keys and values into their slots: a block for each token of each of the two.

// Of keys, of values.
struct KvAppendParams {
    Ptr from[2], to[2];
    Ptr slots, status;
    // Of token, head, element.
    i64 from_strides[2][3];
    // Of block, head, slot, element.
    i64 to_strides[2][4];
    i64 slot_stride;
    u64 tokens, places;
    u32 heads, head_dim, block_size;
    u32 source, kv, slots_type;
};

SINEW_KERNEL(kv_append, KvAppendParams) {
    __shared__ u32 overtaken;
    const u32 side = blockIdx.y;
    const u64 token = blockIdx.x;
    const i64 slot = load_index(p.slots, p.slots_type, i64(token) * p.slot_stride);
    if (slot < 0 || u64(slot) >= p.places) {
        if (threadIdx.x == 0) report(p.status, slot);
        return;
    }
    // The later of two tokens with one slot stays. All later slots are read: as many bytes as the rows themselves at
    // some thousand tokens, and from the caches.
    if (threadIdx.x == 0) overtaken = 0;
    __syncthreads();
    for (u64 later = token + 1 + threadIdx.x; later < p.tokens; later += blockDim.x) {
        if (load_index(p.slots, p.slots_type, i64(later) * p.slot_stride) == slot) overtaken = 1;
    }
    __syncthreads();
    if (overtaken) return;

    const i64* const from_strides = p.from_strides[side];
    const i64* const to_strides = p.to_strides[side];
    u64 block = u64(slot);
    const i64 place = divide(block, p.block_size);
    const i64 from = i64(token) * from_strides[0], to = i64(block) * to_strides[0] + place * to_strides[2];
    for (u32 i = threadIdx.x; i < p.heads * p.head_dim; i += blockDim.x) {
        const i64 head = i / p.head_dim, d = i % p.head_dim;
        const float value = load(p.from[side], p.source, from + head * from_strides[1] + d * from_strides[2]);
        store(p.to[side], p.kv, to + head * to_strides[1] + d * to_strides[3], value);
    }
}
