// The rows of an expert, by a workgroup: each thread has a run of slots, and those of the threads before it come first.

var<workgroup> lower: array<u32, WORKGROUP>;
var<workgroup> own: array<u32, WORKGROUP>;

fn expert_of(slot: u32) -> u32 {
    return bits_experts(slot / p.top_k * p.experts_row + slot % p.top_k * p.experts_step).x;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let expert = linear(group);
    if (expert > p.num_experts) {
        return;
    }
    let share = (p.slots + WORKGROUP - 1u) / WORKGROUP;
    let begin = min(lane.index * share, p.slots);
    let end = min(begin + share, p.slots);
    var before = 0u;
    var mine = 0u;
    for (var slot = begin; slot < end; slot += 1u) {
        let found = expert_of(slot);
        before += select(0u, 1u, found < expert);
        mine += select(0u, 1u, found == expert);
    }
    lower[lane.index] = before;
    own[lane.index] = mine;
    workgroupBarrier();
    var start = 0u;
    for (var i = 0u; i < WORKGROUP; i += 1u) {
        start += lower[i];
    }
    if (lane.index == 0u) {
        store_offsets(expert * p.offsets_step, vec2(start, 0u));
    }
    for (var i = 0u; i < lane.index; i += 1u) {
        start += own[i];
    }
    for (var slot = begin; slot < end; slot += 1u) {
        if (expert_of(slot) == expert) {
            store_place(slot * p.place_step, vec2(start, 0u));
            store_source(start * p.source_step, vec2(slot / p.top_k, 0u));
            start += 1u;
        }
    }
}
