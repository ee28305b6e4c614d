// A workgroup for up to ROWS rows (queries times the heads that share keys) of one sequence and head of keys, over all
// groups of keys, or over one where the groups are split. By the online softmax: scores of a tile of keys by a thread
// for each key and some rows, then the accumulators by a thread for some columns and all rows. What a row's scores come
// to, neighbouring threads find among themselves as far as they can, and one thread of the row from there on.

const QUADS = (HEAD_DIM + 3u) / 4u;
const COLUMNS = (HEAD_DIM + WORKGROUP - 1u) / WORKGROUP;
// Rows whose scores a thread computes for its key.
const PER_THREAD = max(ROWS * TILE / WORKGROUP, 1u);
const PITCH = TILE + 1u;

var<workgroup> described: vec4<u32>;
var<workgroup> queries: array<vec4<f32>, ROWS * QUADS>;
var<workgroup> scores: array<f32, ROWS * PITCH>;
var<workgroup> weights: array<f32, TILE * ROWS>;
var<workgroup> values_at: array<u32, TILE>;
var<workgroup> largest: array<f32, ROWS>;
var<workgroup> kept: array<f32, ROWS>;
var<workgroup> added: array<f32, ROWS>;

fn rounded(v: f32) -> f32 {
    return select(v, f32_of_bf16(bf16_of_f32(v)), ROUND == 1u);
}

fn four_k(at: u32, count: u32) -> vec4<f32> {
    if (p.k_step == 1u && count >= 4u) {
        return load4_k(at);
    }
    var v = vec4<f32>();
    for (var i = 0u; i < min(count, 4u); i += 1u) {
        v[i] = load_k(at + i * p.k_step);
    }
    return v;
}

// The sum of what neighbours have found, in the order in which they have: each added to its neighbour first.
fn sum_of_scores(at: u32, count: u32) -> f32 {
    for (var step = 1u; step < count; step *= 2u) {
        for (var i = 0u; i < count; i += 2u * step) {
            scores[at + i] += scores[at + i + step];
        }
    }
    return scores[at];
}

// Where a row's part of the result is, of one group of keys: the largest score, the sum, the accumulator.
fn partial_at(first_query: u32, kv_head: u32, row: u32, split: u32) -> u32 {
    let head = kv_head * SHARE + row % SHARE;
    let number = (first_query + row / SHARE) * p.heads + head;
    return p.partials + (number * p.splits + split) * (HEAD_DIM + 2u);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, me: Lane) {
    let lane = number(me);
    let unit = linear(group);
    let first_row = unit % p.blocks * ROWS;
    let split = unit / p.blocks % p.splits;
    let kv_head = unit / p.blocks / p.splits % p.kv_heads;
    let sequence = unit / p.blocks / p.splits / p.kv_heads;
    if (sequence >= p.sequences) {
        return;
    }
    if (lane == 0u) {
        let at = sequence * 4u;
        described = vec4(bits_scratch(at).x, bits_scratch(at + 1u).x, bits_scratch(at + 2u).x, bits_scratch(at + 3u).x);
    }
    let seq = workgroupUniformLoad(&described);
    let rows = seq.y * SHARE;
    if (first_row >= rows) {
        return;
    }
    for (var i = lane; i < ROWS * QUADS * 4u; i += WORKGROUP) {
        let row = first_row + i / (QUADS * 4u);
        let d = i % (QUADS * 4u);
        var q = 0.0;
        if (row < rows && d < HEAD_DIM) {
            let head = kv_head * SHARE + row % SHARE;
            q = rounded(load_q((seq.x + row / SHARE) * p.q_token + head * p.q_head + d * p.q_step));
        }
        queries[i / 4u][i % 4u] = q;
    }
    // The keys that any row sees.
    let last_row = min(first_row + ROWS, rows) - 1u;
    let start_key = visible(first_row / SHARE, seq.y, seq.w).x;
    let stop_key = visible(last_row / SHARE, seq.y, seq.w).y;
    var first_group = start_key / GROUP;
    var end_group = select(0u, (stop_key + GROUP - 1u) / GROUP, stop_key > start_key);
    if (SPLIT == 1u) {
        first_group = max(first_group, split);
        end_group = min(end_group, split + 1u);
    }
    let my_key = lane % TILE;
    let my_rows = lane / TILE * PER_THREAD;
    let part = near(TILE, me);
    let speaks = my_rows < ROWS && my_key % part == 0u;
    // Of the row whose number the thread has: the largest score and the sum, of a group and of all before it.
    var group_largest = least();
    var group_sum = 0.0;
    var all_largest = least();
    var all_sum = 0.0;
    var acc = array<f32, ROWS * COLUMNS>();
    var all = array<f32, ROWS * COLUMNS>();
    for (var g = first_group; g < end_group; g += 1u) {
        group_largest = least();
        group_sum = 0.0;
        for (var i = 0u; i < ROWS * COLUMNS; i += 1u) {
            acc[i] = 0.0;
        }
        let end_tile = (min((g + 1u) * GROUP, stop_key) + TILE - 1u) / TILE;
        for (var tile = max(g * GROUP, start_key) / TILE; tile < end_tile; tile += 1u) {
            // The queries are stored, and what the tile before it left is read.
            workgroupBarrier();
            let key = tile * TILE + my_key;
            var score = array<f32, PER_THREAD>();
            if (key >= start_key && key < stop_key) {
                var block = 0u;
                var slot = seq.z + key;
                if (PAGED == 1u) {
                    block = block_at(sequence, key / p.block_size);
                    slot = key % p.block_size;
                }
                if (lane < TILE) {
                    values_at[lane] = block * p.v_block + kv_head * p.v_head + slot * p.v_slot;
                }
                let at = block * p.k_block + kv_head * p.k_head + slot * p.k_slot;
                if (my_rows < ROWS) {
                    for (var i = 0u; i < QUADS; i += 1u) {
                        let k = four_k(at + i * 4u * p.k_step, HEAD_DIM - i * 4u);
                        for (var r = 0u; r < PER_THREAD; r += 1u) {
                            let q = queries[(my_rows + r) * QUADS + i];
                            score[r] = fma(q.w, k.w, fma(q.z, k.z, fma(q.y, k.y, fma(q.x, k.x, score[r]))));
                        }
                    }
                }
            }
            for (var r = 0u; r < PER_THREAD; r += 1u) {
                let row = first_row + my_rows + r;
                let sees = visible(min(row, last_row) / SHARE, seq.y, seq.w);
                var s = least();
                if (row < rows && key >= sees.x && key < sees.y) {
                    s = score[r] * bitcast<f32>(p.scale);
                    if (CAPPED == 1u) {
                        let cap = bitcast<f32>(p.softcap);
                        s = cap * hyperbolic_tangent(s / cap);
                    }
                    let head = kv_head * SHARE + row % SHARE;
                    s = masked(s, head * p.mask_head + (seq.x + row / SHARE) * p.mask_token + key * p.mask_step);
                }
                score[r] = s;
                let most = max_near(key_of(s), TILE, me);
                if (speaks) {
                    scores[(my_rows + r) * PITCH + my_key / part] = value_of(most);
                }
            }
            workgroupBarrier();
            if (lane < ROWS) {
                var most = group_largest;
                for (var i = 0u; i < TILE / part; i += 1u) {
                    most = larger(most, scores[lane * PITCH + i]);
                }
                kept[lane] = 1.0;
                if (!is_least(most)) {
                    kept[lane] = exponential(group_largest - most);
                }
                largest[lane] = most;
                group_largest = most;
            }
            workgroupBarrier();
            for (var r = 0u; r < PER_THREAD; r += 1u) {
                let row = my_rows + r;
                var weight = 0.0;
                if (row < ROWS && !is_least(score[r])) {
                    weight = exponential(score[r] - largest[row]);
                }
                let sum = sum_near(weight, TILE, me);
                if (speaks) {
                    scores[row * PITCH + my_key / part] = sum;
                }
                if (row < ROWS) {
                    weights[my_key * ROWS + row] = rounded(weight);
                }
            }
            workgroupBarrier();
            if (lane < ROWS) {
                group_sum = fma(group_sum, kept[lane], sum_of_scores(lane * PITCH, TILE / part));
            }
            let first_key = max(tile * TILE, start_key) - tile * TILE;
            let end_key = min(stop_key - tile * TILE, TILE);
            for (var c = 0u; c < COLUMNS; c += 1u) {
                let d = c * WORKGROUP + lane;
                if (d < HEAD_DIM) {
                    for (var r = 0u; r < ROWS; r += 1u) {
                        acc[c * ROWS + r] *= kept[r];
                    }
                    for (var i = first_key; i < end_key; i += 1u) {
                        let v = load_v(values_at[i] + d * p.v_step);
                        // A value that is no number must not reach rows that do not see its key.
                        let is_finite = (bitcast<u32>(v) & 0x7f800000u) != 0x7f800000u;
                        for (var r = 0u; r < ROWS; r += 1u) {
                            let weight = weights[i * ROWS + r];
                            if (is_finite || bitcast<u32>(weight) != 0u) {
                                acc[c * ROWS + r] = fma(weight, v, acc[c * ROWS + r]);
                            }
                        }
                    }
                }
            }
        }
        if (SPLIT == 0u) {
            workgroupBarrier();
            if (lane < ROWS) {
                let step = merged(all_largest, group_largest);
                all_sum = fma(group_sum, step.added, all_sum * step.kept);
                all_largest = step.largest;
                kept[lane] = step.kept;
                added[lane] = step.added;
            }
            workgroupBarrier();
            for (var i = 0u; i < ROWS * COLUMNS; i += 1u) {
                all[i] = fma(acc[i], added[i % ROWS], all[i] * kept[i % ROWS]);
            }
        }
    }
    if (lane < ROWS) {
        largest[lane] = all_largest;
        added[lane] = with_sink(all_sum, all_largest, kv_head * SHARE + (first_row + lane) % SHARE);
    }
    workgroupBarrier();
    if (SPLIT == 1u && lane < ROWS && first_row + lane < rows) {
        let at = partial_at(seq.x, kv_head, first_row + lane, split);
        store_scratch(at, group_largest);
        store_scratch(at + 1u, group_sum);
    }
    for (var i = 0u; i < ROWS * COLUMNS; i += 1u) {
        let row = first_row + i % ROWS;
        let d = i / ROWS * WORKGROUP + lane;
        if (row < rows && d < HEAD_DIM) {
            if (SPLIT == 1u) {
                store_scratch(partial_at(seq.x, kv_head, row, split) + 2u + d, acc[i]);
            } else {
                let head = kv_head * SHARE + row % SHARE;
                let at = (seq.x + row / SHARE) * p.o_token + head * p.o_head + d * p.o_step;
                store_o(at, ratio(all[i], added[i % ROWS], largest[i % ROWS]));
            }
        }
    }
}
