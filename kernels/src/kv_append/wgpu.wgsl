var<workgroup> is_replaced: atomic<u32>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let number = linear(group);
    if (number >= p.count) {
        return;
    }
    let token = p.first + number;
    if (lane.index == 0u) {
        atomicStore(&is_replaced, 0u);
    }
    workgroupBarrier();
    let bits = bits_slots(token * p.slot_stride);
    for (var later = token + 1u + lane.index; later < p.tokens; later += WORKGROUP) {
        if (all(bits_slots(later * p.slot_stride) == bits)) {
            atomicStore(&is_replaced, 1u);
        }
    }
    workgroupBarrier();
    let slot = index_slots(token * p.slot_stride, p.places);
    // Another dispatch has the blocks that are not in this part of the cache.
    let block = slot / p.block_size - p.first_block;
    if (slot == p.places || block >= p.blocks || atomicLoad(&is_replaced) == 1u) {
        return;
    }
    let place = slot % p.block_size;
    for (var i = lane.index; i < p.values; i += WORKGROUP) {
        let head = i / p.head_dim;
        let value = i % p.head_dim;
        let k_from = number * p.k_token + head * p.k_head + value * p.k_value;
        let v_from = number * p.v_token + head * p.v_head + value * p.v_value;
        let k_to = block * p.k_block + head * p.k_to_head + place * p.k_place + value * p.k_to_value;
        let v_to = block * p.v_block + head * p.v_to_head + place * p.v_place + value * p.v_to_value;
        if (MOVES == 1u) {
            put_k_cache(k_to, bits_k_new(k_from));
            put_v_cache(v_to, bits_v_new(v_from));
        } else {
            store_k_cache(k_to, load_k_new(k_from));
            store_v_cache(v_to, load_v_new(v_from));
        }
    }
}
