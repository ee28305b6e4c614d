// Reductions over a workgroup of WORKGROUP threads, a power of two, through shared memory. Sums are added to their
// neighbours' first, as subgroups do it.

struct Lane {
    @builtin(local_invocation_index) index: u32,
}

// A thread's number, as `near` goes by it.
fn number(lane: Lane) -> u32 {
    return lane.index;
}

// Threads of a run of so many that exchange values without memory, and what they have together: each is by itself.
fn near(run: u32, lane: Lane) -> u32 {
    return 1u;
}

fn sum_near(v: f32, run: u32, lane: Lane) -> f32 {
    return v;
}

fn max_near(n: u32, run: u32, lane: Lane) -> u32 {
    return n;
}

fn sum_all(v: f32, lane: Lane) -> f32 {
    // Who reads the last result must be done.
    workgroupBarrier();
    reduced[lane.index] = v;
    for (var step = 1u; step < WORKGROUP; step *= 2u) {
        workgroupBarrier();
        if (lane.index % (2u * step) == 0u) {
            reduced[lane.index] += reduced[lane.index + step];
        }
    }
    workgroupBarrier();
    return reduced[0];
}

fn count_all(n: u32, lane: Lane) -> u32 {
    workgroupBarrier();
    counted[lane.index] = n;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane.index < half) {
            counted[lane.index] += counted[lane.index + half];
        }
    }
    workgroupBarrier();
    return counted[0];
}

fn best_all(mine: vec3<u32>, lane: Lane) -> vec3<u32> {
    workgroupBarrier();
    best[lane.index] = mine;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane.index < half && is_before(best[lane.index + half], best[lane.index])) {
            best[lane.index] = best[lane.index + half];
        }
    }
    workgroupBarrier();
    return best[0];
}
