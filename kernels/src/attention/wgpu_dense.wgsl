fn block_at(sequence: u32, block: u32) -> u32 {
    return 0u;
}
