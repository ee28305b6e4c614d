// Reductions over a workgroup of WORKGROUP threads by subgroups, of whatever power of two the driver makes them.

struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

// A sum is added to its neighbour's, of one thread, then of two, then of four: an order that no size of subgroups changes.
fn sum_all(v: f32, lane: Lane) -> f32 {
    var sum = v;
    // Sums that are left, which stand in as many neighbouring threads.
    var left = WORKGROUP;
    loop {
        for (var step = 1u; step < min(left, lane.size); step *= 2u) {
            sum += subgroupShuffleXor(sum, step);
        }
        if (left <= lane.size) {
            break;
        }
        left /= lane.size;
        // Who reads the last result must be done.
        workgroupBarrier();
        if (lane.in_subgroup == 0u && lane.subgroup < left) {
            reduced[lane.subgroup] = sum;
        }
        workgroupBarrier();
        sum = reduced[(lane.subgroup * lane.size + lane.in_subgroup) % left];
    }
    return sum;
}

fn count_all(n: u32, lane: Lane) -> u32 {
    let mine = subgroupAdd(n);
    workgroupBarrier();
    if (lane.in_subgroup == 0u) {
        counted[lane.subgroup] = mine;
    }
    workgroupBarrier();
    var count = 0u;
    for (var i = 0u; i < lane.subgroups; i += 1u) {
        count += counted[i];
    }
    return count;
}

fn best_all(mine: vec3<u32>, lane: Lane) -> vec3<u32> {
    let x = subgroupMax(mine.x);
    let y = subgroupMax(select(0u, mine.y, mine.x == x));
    let z = subgroupMin(select(0xffffffffu, mine.z, mine.x == x && mine.y == y));
    workgroupBarrier();
    if (lane.in_subgroup == 0u) {
        best[lane.subgroup] = vec3(x, y, z);
    }
    workgroupBarrier();
    var first = best[0];
    for (var i = 1u; i < lane.subgroups; i += 1u) {
        if (is_before(best[i], first)) {
            first = best[i];
        }
    }
    return first;
}
