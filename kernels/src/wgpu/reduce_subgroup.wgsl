// Reductions over a workgroup of WORKGROUP threads by subgroups, of whatever power of two the driver makes them.

struct Lane {
    @builtin(local_invocation_index) index: u32,
    @builtin(subgroup_invocation_id) in_subgroup: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

// A thread's number, as `near` goes by it: drivers need not form subgroups of neighbouring invocations. Subgroups are
// full where a workgroup has as many threads.
fn number(lane: Lane) -> u32 {
    return lane.subgroup * lane.size + lane.in_subgroup;
}

// Threads of a run of so many, a power of two, that exchange values without memory, and what they have together. A sum is
// added to its neighbour's, of one thread, then of two, then of four: an order that no size of subgroups changes.
fn near(run: u32, lane: Lane) -> u32 {
    return min(run, lane.size);
}

fn sum_near(v: f32, run: u32, lane: Lane) -> f32 {
    var sum = v;
    for (var step = 1u; step < near(run, lane); step *= 2u) {
        sum += subgroupShuffleXor(sum, step);
    }
    return sum;
}

fn max_near(n: u32, run: u32, lane: Lane) -> u32 {
    var most = n;
    for (var step = 1u; step < near(run, lane); step *= 2u) {
        most = max(most, subgroupShuffleXor(most, step));
    }
    return most;
}

fn sum_all(v: f32, lane: Lane) -> f32 {
    var sum = sum_near(v, WORKGROUP, lane);
    // Sums that are left, for which as many neighbouring threads stand.
    var left = WORKGROUP / near(WORKGROUP, lane);
    while (left > 1u) {
        // Who reads the last result must be done.
        workgroupBarrier();
        if (lane.in_subgroup == 0u && lane.subgroup < left) {
            reduced[lane.subgroup] = sum;
        }
        workgroupBarrier();
        sum = sum_near(reduced[number(lane) % left], left, lane);
        left /= near(left, lane);
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
