fn block_at(sequence: u32, block: u32) -> u32 {
    return bits_block_table(sequence * p.table_row + block * p.table_step).x;
}
