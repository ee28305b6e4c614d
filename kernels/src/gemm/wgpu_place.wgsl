// The product, first row and first output of a workgroup by its number, and the end of the rows. Neighbours share outputs,
// so that a weight is read from memory once.
fn place_of(number: u32, rows: u32, outputs: u32, leads: bool) -> vec4<u32> {
    let row_groups = (p.rows + rows - 1u) / rows;
    let output_groups = ((p.count << GATED) + outputs - 1u) / outputs;
    return vec4(
        number / row_groups / output_groups,
        number % row_groups * rows,
        number / row_groups % output_groups * outputs,
        p.rows,
    );
}
