//! What a context's device takes and keeps, as the rows of its registry say.

use sinew_kernels::Operator;
use sinew_kernels::attention::OldKv;
use sinew_kernels::packed::{Encoding, Format, GROUP_SIZES, PackedShape, formats};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use crate::error::refuse;
use crate::{Context, Error, Result};

/// The error of weights that a context's device does not keep.
pub(crate) fn no_format(ctx: &Context, encoding: Encoding) -> Error {
    let (device, kept) = (ctx.device().id(), ctx.kept_weights());
    refuse("pack", format!("no packed format keeps {encoding} on {device}; kept are {kept}"))
}

impl Context {
    /// Whether a row takes a problem on the device: whether there is anything to [choose](Self::choose) from.
    pub fn supports<O: Operator>(&self, fixed: &O::Static) -> bool {
        self.registry().supports::<O>(fixed, self.device().hardware())
    }

    /// The format in which the device keeps weights in an encoding, if there is one: that in which its rows multiply
    /// them.
    ///
    /// ```
    /// use sinew_ops::Context;
    /// use sinew_tensor::{BlockFormat, BlockValues, DType};
    ///
    /// let ctx = Context::cpu()?;
    /// let int4 = |group| BlockFormat::new(BlockValues::Int4, group, DType::BF16, false);
    /// assert!(ctx.format(DType::BF16).is_some() && ctx.format(int4(32)?).is_some());
    /// assert!(ctx.format(DType::I32).is_none() && ctx.format(int4(48)?).is_none());
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    pub fn format(&self, encoding: impl Into<Encoding>) -> Option<&'static Format> {
        self.registry().format(encoding, self.device().hardware())
    }

    /// What a weight `[n, k]`, or `groups` of them, becomes in that format: known before there is one.
    ///
    /// ```
    /// use sinew_ops::Context;
    /// use sinew_tensor::DType;
    ///
    /// let shape = Context::cpu()?.packed_shape(DType::F32, 1, [64, 3], false)?;
    /// assert_eq!(shape.bytes(), 64 * 3 * 4);
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    ///
    /// # Errors
    /// An encoding without a format.
    pub fn packed_shape(
        &self,
        encoding: impl Into<Encoding>,
        groups: usize,
        [n, k]: [usize; 2],
        gated: bool,
    ) -> Result<PackedShape> {
        let encoding = encoding.into();
        let format = self.format(encoding).ok_or_else(|| no_format(self, encoding))?;
        Ok(PackedShape { format, groups, n, k, gated })
    }

    /// The block-quantized weights that the device keeps.
    pub fn kept_blocks(&self) -> impl Iterator<Item = BlockFormat> {
        let blocks = formats().filter_map(|format| match format.encoding() {
            Encoding::Blocks(blocks) => Some(blocks),
            Encoding::Float(_) => None,
        });
        blocks.filter(|blocks| self.format(*blocks).is_some())
    }

    /// The weights that the device keeps, in words: what would work where others are refused.
    ///
    /// ```
    /// let ctx = sinew_ops::Context::cpu()?;
    /// assert!(ctx.kept_weights().starts_with("f32, f16, bf16, and int4, "));
    /// # Ok::<(), sinew_ops::Error>(())
    /// ```
    pub fn kept_weights(&self) -> String {
        let floats = DType::COMPUTE.into_iter().filter(|dtype| self.format(*dtype).is_some());
        let floats = floats.map(DType::name).collect::<Vec<_>>().join(", ");
        let is_kept = |values: &BlockValues| self.kept_blocks().any(|blocks| blocks.values() == *values);
        let values: Vec<&str> = BlockValues::ALL.into_iter().filter(is_kept).map(BlockValues::name).collect();
        let [a, b, c] = GROUP_SIZES;
        match values.is_empty() {
            true => floats,
            false => format!("{floats}, and {} in groups of {a}, {b} and {c}", values.join(", ")),
        }
    }

    /// Whether the device has paged caches with keys and values in such a dtype, and with old ones in a form of their
    /// own, where they have one.
    pub fn keeps_kv(&self, kv: DType, old: Option<OldKv>) -> bool {
        self.registry().keeps_kv(kv, old, self.device().hardware())
    }
}
