//! AWQ, as AutoAWQ packs it for its `gemm` kernel.
//!
//! With `G = in / group_size`: `qweight` I32 `[in, out / 8]` and `qzeros` I32 `[G, out / 8]`, both packed along `out` and
//! interleaved, and `scales` `[G, out]`. `w[o, i] = (q[i, o] − z[g, o]) · scales[g, o]` in the scales' dtype, with
//! `g = i / group_size` (AutoAWQ's `dequantize_gemm`).

use std::ops::Range;

use safetensors::Dtype;
use sinew_tensor::BlockValues;

use super::module::{CodesLayout, Groups, Parts, ScalesLayout, Stored, StoredModule, ZerosLayout, signed_nibbles};
use super::probe::{Probe, SCALES, scale_dtype};
use crate::checkpoint::Checkpoint;
use crate::error::Result;

/// The output, of the eight of a word, that each nibble belongs to, lowest first.
pub(super) const OUTPUT_OF_NIBBLE: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// How all quantized modules are.
#[derive(Debug, Clone)]
pub(super) struct Awq {
    /// `None`: a scale for each row.
    pub group: Option<usize>,
}

impl Awq {
    pub fn module(&self, checkpoint: &Checkpoint, name: &str) -> Result<Option<StoredModule>> {
        let probe = Probe { checkpoint, module: name, format: "AWQ" };
        let Some(codes) = probe.find("qweight") else { return Ok(None) };
        probe.check_dtype(&codes, &[Dtype::I32])?;
        let [k, words] = probe.matrix(&codes)?;
        let n = probe.times(words, OUTPUT_OF_NIBBLE.len())?;
        let groups = self.group.map_or_else(|| Groups::whole(k), |size| Groups::of(k, size));
        let scales = probe.tensor("scales", &SCALES)?;
        probe.check_shape(&scales, &[groups.count, n])?;
        let zeros = probe.tensor("qzeros", &[Dtype::I32])?;
        probe.check_shape(&zeros, &[groups.count, words])?;
        let scale = scale_dtype(scales.dtype);
        let parts = Parts {
            shape: [n, k],
            dtype: scale,
            values: BlockValues::Int4,
            codes: Stored { tensor: codes.name, layout: CodesLayout::WordsOfN },
            scales: Stored { tensor: scales.name, layout: ScalesLayout::Columns },
            scale_dtype: scale,
            zeros: Some(Stored { tensor: zeros.name, layout: ZerosLayout::Interleaved }),
            groups,
            others: Vec::new(),
        };
        Ok(Some(StoredModule::new(&probe, parts)?))
    }
}

/// Rows of codes `[rows, k]`, of words `[k, n / 8]`.
pub(super) fn codes(words: &[u8], [n, k]: [usize; 2], rows: Range<usize>) -> Vec<u8> {
    /// Inputs of a tile: a line of the cache in each row.
    const INPUTS: usize = 64;
    let line = n / 8 * 4;
    let mut codes = vec![0; rows.len() * k];
    for (tile, lines) in words.chunks(INPUTS * line).enumerate() {
        for word in rows.start / 8..rows.end.div_ceil(8) {
            for (eight, lines) in lines.chunks(8 * line).enumerate() {
                let (start, mut block) = (tile * INPUTS + eight * 8, [0; 8]);
                for (bytes, line) in block.iter_mut().zip(lines.chunks_exact(line)) {
                    let word = line.as_chunks().0.get(word).map_or(0, |&word| u32::from_le_bytes(word));
                    *bytes = signed_nibbles(word);
                }
                let inputs = 8.min(k - start);
                for (bytes, output) in transposed(block).into_iter().zip(OUTPUT_OF_NIBBLE) {
                    let row = word * 8 + output;
                    if rows.contains(&row) {
                        let at = (row - rows.start) * k + start;
                        codes[at..at + inputs].copy_from_slice(&bytes.to_le_bytes()[..inputs]);
                    }
                }
            }
        }
    }
    codes
}

/// A block of 8 by 8 bytes, transposed: halves of it are exchanged, of those the quarters, and of those the bytes.
fn transposed(mut block: [u64; 8]) -> [u64; 8] {
    for (distance, low) in [(4, 0x0000_0000_ffff_ffff), (2, 0x0000_ffff_0000_ffff), (1, 0x00ff_00ff_00ff_00ffu64)] {
        let shift = distance * 8;
        for at in (0..8).filter(|at| at & distance == 0) {
            let (a, b) = (block[at], block[at + distance]);
            block[at] = a & low | (b & low) << shift;
            block[at + distance] = (a >> shift) & low | b & !low;
        }
    }
    block
}
