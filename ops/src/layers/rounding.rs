//! Rows rounded to blocks, without a kernel that reads them.

use sinew_kernels::packed::{Codes, Encoding, Format, GROUP_SIZES, RowCodes, WeightRows, Weights};
use sinew_tensor::{BlockFormat, DType};

use crate::error::refuse;
use crate::{Context, Result};

/// Rounds rows of a weight to blocks as a [`WeightPacker`](super::WeightPacker) does, and gives their codes, scales and
/// zero points: what checkpoints of quantized weights are made of.
///
/// ```
/// use sinew_ops::Context;
/// use sinew_ops::layers::RowQuantizer;
/// use sinew_tensor::{BlockFormat, BlockValues, DType};
///
/// let format = BlockFormat::new(BlockValues::Int4, 32, DType::BF16, false)?;
/// let rows: Vec<u8> = [4.0f32, -2.0, 1.0, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
/// let mut quantizer = RowQuantizer::new(format, false)?;
/// let rounded = quantizer.quantize(&Context::cpu()?, &rows, DType::F32, 1, 4)?;
/// // 4 is -8 times the scale, which is -0.5.
/// assert_eq!(rounded.codes, [-8, 4, -2, 0].map(|q: i8| q as u8));
/// assert_eq!(rounded.scales, [0x00, 0xbf]);
/// # Ok::<(), sinew_ops::Error>(())
/// ```
#[derive(Debug)]
pub struct RowQuantizer {
    blocks: BlockFormat,
    packed_as: &'static Format,
    per_channel: bool,
    packed: Vec<u8>,
    codes: Vec<u8>,
    scales: Vec<u8>,
    zeros: Vec<i8>,
}

impl RowQuantizer {
    /// One that rounds to `blocks`; where `per_channel`, all groups of a row have the scale, and the zero point, of the
    /// whole row.
    ///
    /// # Errors
    /// A format that weights cannot be packed in.
    pub fn new(blocks: BlockFormat, per_channel: bool) -> Result<Self> {
        let packed_as = Format::in_panels(blocks).ok_or_else(|| {
            let (encoding, [a, b, c]) = (Encoding::Blocks(blocks), GROUP_SIZES);
            refuse("quantize", format!("no weight is packed in {encoding}; groups of {a}, {b} and {c} are"))
        })?;
        let [packed, codes, scales] = [const { Vec::new() }; 3];
        Ok(Self { blocks, packed_as, per_channel, packed, codes, scales, zeros: Vec::new() })
    }

    /// `n` rows of `k` values, given row after row in little-endian order at any alignment, rounded with all threads of
    /// the host.
    ///
    /// # Errors
    /// A dtype that is not f32, f16 or bf16, or another number of bytes.
    pub fn quantize(&mut self, ctx: &Context, rows: &[u8], dtype: DType, n: usize, k: usize) -> Result<Codes<'_>> {
        let rows = [WeightRows::from_bytes(rows, dtype, n, k)?];
        let weights = Weights::new(&rows, false).per_channel(self.per_channel);
        let (team, level) = ctx.host_team();
        let groups = k.div_ceil(self.blocks.group());
        let (line, zero_points) =
            (groups * self.blocks.scale_dtype().size(), if self.blocks.zero_points() { groups } else { 0 });
        self.packed.resize(self.packed_as.packed_bytes(n, k, false), 0);
        self.codes.resize(n * k, 0);
        self.scales.resize(n * line, 0);
        self.zeros.resize(n * zero_points, 0);
        self.packed_as.pack(&team, level, &weights, &mut self.packed)?;
        for row in 0..n {
            let into = RowCodes {
                codes: &mut self.codes[row * k..][..k],
                scales: &mut self.scales[row * line..][..line],
                zeros: &mut self.zeros[row * zero_points..][..zero_points],
            };
            self.packed_as.unpack_codes(&self.packed, n, k, false, row, into)?;
        }
        Ok(Codes { format: self.blocks, codes: &self.codes, scales: &self.scales, zeros: &self.zeros })
    }
}
