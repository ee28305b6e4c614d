// Reductions over a workgroup of WORKGROUP threads: subgroups by themselves, then their results in a row.

struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

var<workgroup> reduced: array<f32, WORKGROUP>;

fn sum_all(v: f32, lane: Lane) -> f32 {
    let mine = subgroupAdd(v);
    // Who reads the last result must be done.
    workgroupBarrier();
    if (lane.in_subgroup == 0u) {
        reduced[lane.subgroup] = mine;
    }
    workgroupBarrier();
    var all = 0.0;
    for (var i = 0u; i < lane.subgroups; i += 1u) {
        all += reduced[i];
    }
    return all;
}

fn max_all(v: f32, lane: Lane) -> f32 {
    let mine = subgroupMax(v);
    workgroupBarrier();
    if (lane.in_subgroup == 0u) {
        reduced[lane.subgroup] = mine;
    }
    workgroupBarrier();
    var all = reduced[0];
    for (var i = 1u; i < lane.subgroups; i += 1u) {
        all = max(all, reduced[i]);
    }
    return all;
}
