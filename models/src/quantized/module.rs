//! A quantized weight among tensors, and rows of it.

use std::ops::Range;
use std::sync::Arc;

use sinew_ops::layers::{Encoding, GROUP_SIZES, MAX_GROUP};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use super::layout::{CodesLayout, ScalesLayout, Stored, ZerosLayout};
use super::probe::Probe;
use crate::error::Result;
use crate::tensors::Tensors;

/// A quantized weight `[n, k]` among tensors.
///
/// ```no_run
/// use sinew_models::{Folder, Load};
///
/// let checkpoint = Folder::new("path/to/model").checkpoint(Load::default())?;
/// if let Some(module) = checkpoint.module("model.layers.0.mlp.down_proj")? {
///     let [outputs, inputs] = module.shape();
///     println!("{outputs} outputs of {inputs} inputs, packed as {}", module.encoding());
/// }
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct StoredModule {
    pub(super) name: String,
    pub(super) shape: [usize; 2],
    /// Matrices of as many rows each that its rows are.
    matrices: usize,
    pub(super) dtype: DType,
    pub(super) values: BlockValues,
    pub(super) codes: Stored<CodesLayout>,
    pub(super) scales: Stored<ScalesLayout>,
    pub(super) scale_dtype: DType,
    pub(super) zeros: Option<Stored<ZerosLayout>>,
    pub(super) groups: Groups,
    pub(super) blocks: Option<BlockFormat>,
    /// What else was read.
    others: Vec<String>,
}

/// The groups of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Groups {
    /// Columns of each, if they are not scattered; the last may have fewer.
    pub size: usize,
    pub count: usize,
    /// The group of each column, where it is not `i / size`.
    pub index: Option<Arc<[u32]>>,
    /// Where groups are scattered, the columns of the first, those of the second, and so on, as they follow each other;
    /// unless a group has another number of them than `size`.
    pub order: Option<Arc<[u32]>>,
}

/// What a format says of a module: [`StoredModule::new`].
pub(super) struct Parts {
    pub shape: [usize; 2],
    pub dtype: DType,
    pub values: BlockValues,
    pub codes: Stored<CodesLayout>,
    pub scales: Stored<ScalesLayout>,
    pub scale_dtype: DType,
    pub zeros: Option<Stored<ZerosLayout>>,
    pub groups: Groups,
    pub others: Vec<String>,
}

/// The least number that both divide; the largest where that is more.
pub(crate) fn common_multiple(a: usize, b: usize) -> usize {
    let (mut divisor, mut rest) = (a, b);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor.max(1)).saturating_mul(b)
}

impl Groups {
    /// Groups of `size` of `k` columns.
    pub fn of(k: usize, size: usize) -> Self {
        Self { size, count: k.div_ceil(size), index: None, order: None }
    }

    /// One for the row.
    pub fn whole(k: usize) -> Self {
        Self { size: k.next_multiple_of(MAX_GROUP), count: 1, index: None, order: None }
    }

    /// The same of columns whose groups are these.
    pub fn scattered(self, index: Option<Vec<u32>>) -> Self {
        let Some(index) = index else { return self };
        let mut order: Vec<u32> = (0..).take(index.len()).collect();
        order.sort_by_key(|&column| index[column as usize]);
        let is_whole = |(at, &column): (usize, &u32)| index[column as usize] as usize == at / self.size;
        let order = order.iter().enumerate().all(is_whole).then(|| order.into());
        Self { index: Some(index.into()), order, ..self }
    }

    /// Columns of the groups in which they are packed: the largest of which theirs are made up.
    fn packed(&self) -> Option<usize> {
        if self.index.is_some() && self.order.is_none() {
            return None;
        }
        let whole = (self.count == 1).then_some(MAX_GROUP);
        GROUP_SIZES.into_iter().rfind(|packed| self.size.is_multiple_of(*packed)).or(whole)
    }
}

impl StoredModule {
    /// A module whose tensors have been found to fit. Zero points that are all in the middle are left out.
    pub(super) fn new(probe: &Probe<'_>, parts: Parts) -> Result<Self> {
        let Parts { shape, dtype, values, codes, scales, scale_dtype, zeros, groups, mut others } = parts;
        probe.times(shape[0], shape[1])?;
        let zeros = match zeros {
            Some(zeros) if zeros.are_middle(probe.tensors)? => {
                others.push(zeros.tensor);
                None
            }
            zeros => zeros,
        };
        let format = |group| BlockFormat::new(values, group, scale_dtype, zeros.is_some());
        let blocks = groups.packed().map(format).transpose()?;
        let name = probe.module.to_owned();
        let matrices = 1;
        Ok(Self { name, shape, matrices, dtype, values, codes, scales, scale_dtype, zeros, groups, blocks, others })
    }

    /// The same of so many matrices of as many rows each, one behind another.
    pub(super) fn stacked(self, matrices: usize) -> Self {
        Self { matrices, ..self }
    }

    /// `[n, k]`: outputs and inputs.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The same as the matrices `[matrices, n / matrices, k]` that it is: experts, where these are one tensor, and else one.
    pub(crate) fn matrices(&self) -> [usize; 3] {
        let [n, k] = self.shape;
        [self.matrices, n / self.matrices.max(1), k]
    }

    /// What the format's own code dequantizes to: f16, bf16 or f32.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How it is packed: in blocks, where its groups are made up of groups of 128, 64 or 32 columns, which are in
    /// [`order`](Self::order) if they are scattered; and else as floats.
    pub fn encoding(&self) -> Encoding {
        self.blocks.map_or(Encoding::Float(self.dtype), Encoding::Blocks)
    }

    /// Its groups, in words, where they are why it is packed as floats.
    pub fn groups_in_no_blocks(&self) -> Option<String> {
        let size = self.groups.size;
        let are_whole = GROUP_SIZES.iter().any(|packed| size.is_multiple_of(*packed));
        let groups = || if are_whole { "groups of unlike sizes".to_owned() } else { format!("groups of {size}") };
        self.blocks.is_none().then(groups)
    }

    /// The order in which its columns are packed in blocks, where groups are scattered (act-order): those of a group side
    /// by side, as the file has them.
    pub fn order(&self) -> Option<&[u32]> {
        self.groups.order.as_deref()
    }

    /// The names of its tensors.
    pub fn tensors(&self) -> impl Iterator<Item = &str> {
        let zeros = self.zeros.as_ref().map(|zeros| &zeros.tensor);
        [&self.codes.tensor, &self.scales.tensor].into_iter().chain(zeros).chain(&self.others).map(String::as_str)
    }

    /// Whether its values lie input after input, all outputs of one side by side: rows of it are in all of its pages, and
    /// columns in some.
    pub(crate) fn lies_by_columns(&self) -> bool {
        self.codes.layout.lies_by_columns()
    }

    /// Columns at whose multiples it can be cut into strips, no value of its tensors being in two; the largest number
    /// where it can not.
    pub(crate) fn strip_granule(&self) -> usize {
        if !self.lies_by_columns() || self.groups.index.is_some() {
            return usize::MAX;
        }
        // A scale of a whole row is in every strip, and is the least of it.
        let group = if self.groups.count == 1 { 1 } else { self.groups.size };
        common_multiple(group, self.codes.layout.columns_of_word())
    }

    /// Lets go of the pages of rows that were packed, where rows have pages of their own.
    pub(crate) fn release_rows(&self, tensors: &Tensors, rows: Range<usize>) {
        if let Some(row_bytes) = self.codes.layout.row_bytes(self.shape[1]) {
            tensors.release_slice(&self.codes.tensor, rows.start * row_bytes..rows.end * row_bytes);
        }
    }

    pub(super) fn check(&self, tensors: &Tensors, rows: &Range<usize>) -> Result<()> {
        let n = self.shape[0];
        if rows.start <= rows.end && rows.end <= n {
            return Ok(());
        }
        let (start, end, name) = (rows.start, rows.end, self.name.escape_debug());
        Err(tensors.problem(format!("rows {start}..{end} of module `{name}`, which has {n}")))
    }
}
