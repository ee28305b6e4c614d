// Reductions over a workgroup of WORKGROUP threads, a power of two, in a tree.

struct Lane {
    @builtin(local_invocation_index) index: u32,
}

var<workgroup> reduced: array<f32, WORKGROUP>;

fn sum_all(v: f32, lane: Lane) -> f32 {
    // Who reads the last result must be done.
    workgroupBarrier();
    reduced[lane.index] = v;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane.index < half) {
            reduced[lane.index] += reduced[lane.index + half];
        }
    }
    workgroupBarrier();
    return reduced[0];
}

fn max_all(v: f32, lane: Lane) -> f32 {
    workgroupBarrier();
    reduced[lane.index] = v;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane.index < half) {
            reduced[lane.index] = max(reduced[lane.index], reduced[lane.index + half]);
        }
    }
    workgroupBarrier();
    return reduced[0];
}
