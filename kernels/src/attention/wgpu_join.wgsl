// A workgroup for each query and head: merges the groups of keys that others have computed.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let row = linear(group);
    if (row >= p.rows) {
        return;
    }
    let pitch = HEAD_DIM + 2u;
    let first = p.partials + row * p.splits * pitch;
    for (var d = lane; d < HEAD_DIM; d += 64u) {
        var largest = least();
        var sum = 0.0;
        var acc = 0.0;
        for (var i = 0u; i < p.splits; i += 1u) {
            let at = first + i * pitch;
            let step = merged(largest, load_scratch(at));
            if (!is_least(load_scratch(at))) {
                sum = fma(load_scratch(at + 1u), step.added, sum * step.kept);
                acc = fma(load_scratch(at + 2u + d), step.added, acc * step.kept);
                largest = step.largest;
            }
        }
        let token = row / p.heads;
        let head = row % p.heads;
        let at = token * p.o_token + head * p.o_head + d * p.o_step;
        store_o(at, ratio(acc, with_sink(sum, largest, head), largest));
    }
}
