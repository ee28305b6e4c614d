//! AWQ, as AutoAWQ packs it for its `gemm` kernel.
//!
//! With `G = in / group_size`: `qweight` I32 `[in, out / 8]` and `qzeros` I32 `[G, out / 8]`, both packed along `out`
//! and interleaved, and `scales` `[G, out]`. `w[o, i] = (q[i, o] − z[g, o]) · scales[g, o]` in the scales' dtype, with
//! `g = i / group_size` (AutoAWQ's `dequantize_gemm`).

use std::ops::Range;

use safetensors::Dtype;
use sinew_tensor::BlockValues;

use super::bits::{Bits, signed_nibbles};
use super::config::{bits, expect, group_size, unsupported};
use super::layout::{CodesLayout, ScalesLayout, Stored, ZerosLayout};
use super::module::{Groups, Parts, StoredModule};
use super::probe::{Probe, SCALES, scale_dtype};
use crate::error::Result;
use crate::json::Fields;
use crate::tensors::Tensors;

/// The output, of the eight of a word, that each nibble belongs to, lowest first.
pub(super) const OUTPUT_OF_NIBBLE: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// How all quantized modules are.
#[derive(Debug, Clone)]
pub(super) struct Awq {
    /// `None`: a scale for each row.
    group: Option<usize>,
}

impl Awq {
    /// What a config says.
    pub fn read(fields: &Fields<'_>) -> Result<Self> {
        // GPTQModel says `format`; AutoAWQ's own files have `w_bit` and `q_group_size`.
        for name in ["version", "format", "checkpoint_format"] {
            expect(fields, name, "gemm", &["gemm"])?;
        }
        let bits_name = if fields.get("bits").is_some() { "bits" } else { "w_bit" };
        let bits = fields.required(bits_name, bits(fields, bits_name)?)?;
        if bits != Bits::Four {
            return Err(unsupported(fields, bits_name, &bits.count().to_string(), "4"));
        }
        if fields.flag("zero_point")? == Some(false) {
            return Err(unsupported(fields, "zero_point", "false", "true"));
        }
        let group_name = if fields.get("group_size").is_some() { "group_size" } else { "q_group_size" };
        Ok(Self { group: fields.required(group_name, group_size(fields, group_name)?)? })
    }

    pub fn module(&self, tensors: &Tensors, name: &str) -> Result<Option<StoredModule>> {
        let probe = Probe { tensors, module: name, format: "AWQ" };
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
    /// Words of a tile: such a line of each input. The tile is copied, as lines that are a power of 2 apart drive each
    /// other out of the cache before all of their words are read.
    const WORDS: usize = 16;
    let line = n / 8 * 4;
    let (first, end) = (rows.start / 8, rows.end.div_ceil(8));
    let mut codes = vec![0; rows.len() * k];
    let mut tile = [[0u32; WORDS]; INPUTS];
    for (start, lines) in (0..k).step_by(INPUTS).zip(words.chunks(INPUTS * line)) {
        let inputs = INPUTS.min(k - start);
        for at in (first..end).step_by(WORDS) {
            let width = WORDS.min(end - at);
            for (tile, line) in tile.iter_mut().zip(lines.chunks_exact(line)) {
                let line = line[at * 4..(at + width) * 4].as_chunks().0;
                tile.iter_mut().zip(line).for_each(|(word, &bytes)| *word = u32::from_le_bytes(bytes));
            }
            for word in 0..width {
                // Of each of its outputs, the inputs, eight at a time; those past the last are what the tile had
                // before.
                let mut outputs = [[0u64; INPUTS / 8]; 8];
                for (eight, tile) in tile.as_chunks::<8>().0.iter().enumerate() {
                    let block = transposed(tile.map(|line| signed_nibbles(line[word])));
                    outputs.iter_mut().zip(block).for_each(|(output, bytes)| output[eight] = bytes);
                }
                for (output, place) in outputs.iter().zip(OUTPUT_OF_NIBBLE) {
                    let row = (at + word) * 8 + place;
                    if rows.contains(&row) {
                        let codes = &mut codes[(row - rows.start) * k + start..][..inputs];
                        codes.copy_from_slice(&output.map(u64::to_le_bytes).as_flattened()[..inputs]);
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
