// The weight, first row and first output of a workgroup by its number, and the end of its group's rows: tiles of rows are
// counted through group after group. The thread that leads looks them up for all. Whatever offsets hold, rows are those of
// the dispatch.

var<workgroup> place: vec4<u32>;

fn offset(i: u32) -> u32 {
    return bits_offsets(i * p.offsets_step).x;
}

fn looked_up(number: u32, rows: u32, outputs: u32) -> vec4<u32> {
    let total = offset(p.all_groups);
    if (total != p.all_rows) {
        report(total);
    }
    // Each group ends with a tile that may not be full.
    let row_tiles = min(p.rows, p.rows / rows + p.batch);
    let output = number / row_tiles * outputs;
    var tile = number % row_tiles;
    for (var group = 0u; group < p.batch; group += 1u) {
        let first = offset(p.first_group + group);
        let last = offset(p.first_group + group + 1u);
        if (first > last || last > p.all_rows || (p.first_group + group == 0u && first != 0u)) {
            report(first);
        }
        let begin = clamp(first, p.first_row, p.first_row + p.rows) - p.first_row;
        let end = clamp(last, p.first_row, p.first_row + p.rows) - p.first_row;
        let tiles = (max(begin, end) - begin + rows - 1u) / rows;
        if (tile < tiles) {
            return vec4(group, begin + tile * rows, output, end);
        }
        tile -= tiles;
    }
    return vec4(p.batch, 0u, 0u, 0u);
}

fn place_of(number: u32, rows: u32, outputs: u32, leads: bool) -> vec4<u32> {
    if (leads) {
        place = looked_up(number, rows, outputs);
    }
    return workgroupUniformLoad(&place);
}
