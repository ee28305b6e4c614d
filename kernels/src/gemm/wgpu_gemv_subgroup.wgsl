// A subgroup for up to ROWS rows and four outputs at a time. Four neighbouring threads read a quarter of a chain each, of
// every output, so that what a subgroup reads at once lies side by side. They exchange quarters, and each has all of the
// chain of one output. Chains are added up in order.

const QUARTER = CHAIN / 4u;

struct Lane {
    @builtin(subgroup_invocation_id) index: u32,
    @builtin(subgroup_size) size: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroups: u32,
}

// Four values of each output, and after the exchange of each quarter.
struct Fours {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

fn exchanged(v: Fours, lane: Lane) -> Fours {
    let odd = (lane.index & 1u) == 1u;
    let ab = subgroupShuffleXor(select(v.b, v.a, odd), 1u);
    let cd = subgroupShuffleXor(select(v.d, v.c, odd), 1u);
    let w = Fours(select(v.a, ab, odd), select(ab, v.b, odd), select(v.c, cd, odd), select(cd, v.d, odd));
    let high = (lane.index & 2u) == 2u;
    let ac = subgroupShuffleXor(select(w.c, w.a, high), 2u);
    let bd = subgroupShuffleXor(select(w.d, w.b, high), 2u);
    return Fours(select(w.a, ac, high), select(w.b, bd, high), select(ac, w.c, high), select(bd, w.d, high));
}

fn four_of(batch: u32, output: u32, k: u32) -> vec4<f32> {
    let count = select(0u, left_of(k, p.k), output < p.count << GATED);
    return four_b(b_at(batch, output) + k * p.b_step, p.b_step, count);
}

fn fours(batch: u32, output: u32, k: u32) -> Fours {
    return Fours(
        four_of(batch, output, k),
        four_of(batch, output + 1u, k),
        four_of(batch, output + 2u, k),
        four_of(batch, output + 3u, k),
    );
}

fn chained(sum: f32, a: u32, k: u32, w: vec4<f32>) -> f32 {
    let v = four_a(a + k * p.a_step, p.a_step, left_of(k, p.k));
    return fma(v.w, w.w, fma(v.z, w.z, fma(v.y, w.y, fma(v.x, w.x, sum))));
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let place = place_of(linear(group), ROWS, OUTPUTS, lane.subgroup == 0u && lane.index == 0u);
    let batch = place.x;
    if (batch >= p.batch) {
        return;
    }
    let first_row = place.y;
    let first_output = place.z;
    let rows = place.w;
    let member = lane.index % 4u;
    let chain = lane.index / 4u;
    let chains = lane.size / 4u;
    for (var four = lane.subgroup * 4u; four < OUTPUTS; four += lane.subgroups * 4u) {
        var total = array<f32, ROWS>();
        for (var start = 0u; start < p.k; start += CHAIN * chains) {
            let k = start + chain * CHAIN;
            let mine = k + member * QUARTER;
            // Of each quarter the first four values and the others.
            let low = exchanged(fours(batch, first_output + four, mine), lane);
            let high = exchanged(fours(batch, first_output + four, mine + 4u), lane);
            for (var i = 0u; i < ROWS; i += 1u) {
                var sum = 0.0;
                if (first_row + i < rows) {
                    let a = batch * p.a_batch + (first_row + i) * p.a_row;
                    sum = chained(chained(sum, a, k, low.a), a, k + 4u, high.a);
                    sum = chained(chained(sum, a, k + 8u, low.b), a, k + 12u, high.b);
                    sum = chained(chained(sum, a, k + 16u, low.c), a, k + 20u, high.c);
                    sum = chained(chained(sum, a, k + 24u, low.d), a, k + 28u, high.d);
                }
                for (var other = 0u; other < chains; other += 1u) {
                    total[i] += subgroupShuffle(sum, other * 4u + member);
                }
            }
        }
        let output = first_output + four + member;
        let column = output >> GATED;
        for (var i = 0u; i < ROWS; i += 1u) {
            // The up of a gate is its neighbour's.
            let up = subgroupShuffleXor(total[i], 1u);
            let row = first_row + i;
            if (i % chains == chain && row < rows && column < p.count && (output & GATED) == 0u) {
                store_d(d_at(batch, row, column), finished(batch, row, column, total[i], up));
            }
        }
    }
}
