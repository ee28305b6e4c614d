// The largest key, of two words, of a workgroup's threads, and of those that have it the lowest number.

var<workgroup> best: array<vec3<u32>, WORKGROUP>;

fn is_before(a: vec3<u32>, b: vec3<u32>) -> bool {
    if (a.x != b.x) {
        return a.x > b.x;
    }
    return a.y > b.y || (a.y == b.y && a.z < b.z);
}

fn best_all(mine: vec3<u32>, lane: Lane) -> vec3<u32> {
    // Who reads the last result must be done.
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
