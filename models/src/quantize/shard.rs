//! One safetensors file, written a slice of a weight at a time.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::{ControlFlow, Range};
use std::path::Path;

use crate::safetensors::{FileLayout, LENGTH_BYTES};
use sinew_ops::Context;
use sinew_ops::layers::{Codes, RowQuantizer};

use super::scheme::{CODES, CodesAs, Module, PACKED, SCALE, SHAPE, Scheme, ZERO_POINT};
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::load::{AT_HAND_BYTES, check_quantizable};
use crate::quantized::{words_of_codes, words_of_zeros};
use crate::tensors::TensorInfo;
use crate::tensors::floats::packable;

/// Rows of a slice are a multiple of it: what is packed along the outputs is so in whole words, and panels are full.
const ROWS: usize = 32;

/// A file that is to be written.
pub(super) struct ShardLayout<'a> {
    pub name: String,
    tensors: Vec<(&'a str, Tensor<'a>)>,
    layout: FileLayout,
}

/// What becomes of a tensor of the original.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tensor<'a> {
    /// Nothing.
    Copied(TensorInfo<'a>),
    /// The tensors of a quantized module, by its name.
    Quantized(&'a str, Module),
}

/// What is written to the files, one after the other.
pub(super) struct Job<'a> {
    ctx: &'a Context,
    checkpoint: &'a Checkpoint,
    scheme: &'a Scheme,
    quantizer: RowQuantizer,
    /// Words of a slice.
    words: Vec<u8>,
    /// Scales of a slice whose rows have one each.
    scales: Vec<u8>,
    zeros: Vec<i8>,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
}

/// A file, and where the tensors are in it.
struct Shard<'a> {
    path: &'a Path,
    file: File,
    places: HashMap<&'a str, Range<usize>>,
}

impl<'a> ShardLayout<'a> {
    /// One of tensors of the original, and what they become.
    ///
    /// # Errors
    /// More tensors than a file can describe, or a dtype that files do not have.
    pub fn new(name: String, tensors: Vec<(&'a str, Tensor<'a>)>, scheme: &Scheme) -> Result<Self> {
        let mut entries = Vec::new();
        for &(name, tensor) in &tensors {
            match tensor {
                Tensor::Copied(info) => entries.push((name.to_owned(), info.dtype, info.shape.to_vec())),
                Tensor::Quantized(module, of) => {
                    let all = scheme.tensors(of)?.into_iter();
                    entries.extend(all.map(|(end, dtype, shape)| (format!("{module}.{end}"), dtype, shape)));
                }
            }
        }
        let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        match FileLayout::new(entries, Some(format)) {
            Ok(layout) => Ok(Self { name, tensors, layout }),
            Err(error) => Err(Error::Checkpoint { file: name, problem: format!("it cannot be written: {error}") }),
        }
    }

    /// The tensors that it will have.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.layout.tensors().iter().map(|(name, _)| name.as_str())
    }

    /// Bytes of its tensors.
    pub fn bytes(&self) -> u64 {
        self.layout.tensors().iter().map(|(_, place)| place.len() as u64).sum()
    }

    /// Bytes that describe them, behind their own number.
    pub fn header_bytes(&self) -> u64 {
        (self.layout.bytes().len() - LENGTH_BYTES) as u64
    }
}

impl<'a> Job<'a> {
    pub fn new(
        ctx: &'a Context,
        checkpoint: &'a Checkpoint,
        scheme: &'a Scheme,
        progress: &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        let quantizer = RowQuantizer::new(scheme.how.format, scheme.how.per_channel)?;
        let (words, scales, zeros) = (Vec::new(), Vec::new(), Vec::new());
        let total = checkpoint.num_bytes();
        Ok(Self { ctx, checkpoint, scheme, quantizer, words, scales, zeros, done: 0, total, progress })
    }

    /// Writes a file.
    pub fn write(&mut self, path: &Path, ShardLayout { tensors, layout, .. }: &ShardLayout<'_>) -> Result<()> {
        let file = File::create_new(path).map_err(|e| Error::io("create", path, e))?;
        let places = layout.tensors().iter().map(|(name, place)| (name.as_str(), place.clone())).collect();
        let mut shard = Shard { path, file, places };
        shard.write_at(0, layout.bytes())?;
        for &(name, tensor) in tensors {
            match tensor {
                Tensor::Copied(info) => self.copy(&mut shard, name, info.num_bytes)?,
                Tensor::Quantized(module, of) => self.quantize(&mut shard, module, of)?,
            }
        }
        shard.file.sync_all().map_err(|e| Error::io("write", path, e))
    }

    fn copy(&mut self, shard: &mut Shard<'_>, name: &str, bytes: usize) -> Result<()> {
        for start in (0..bytes).step_by(AT_HAND_BYTES) {
            let range = start..bytes.min(start + AT_HAND_BYTES);
            let slice = self.checkpoint.tensor_slice(name, range.clone())?;
            shard.put(name, start, &slice.bytes)?;
            drop(slice);
            self.checkpoint.release_slice(name, range.clone());
            self.advance(range.len())?;
        }
        Ok(())
    }

    fn quantize(&mut self, shard: &mut Shard<'_>, module: &str, Module { n, k, dtype }: Module) -> Result<()> {
        let weight = format!("{module}.weight");
        let named = |end: &str| format!("{module}.{end}");
        let row_bytes = k * dtype.size();
        let rows = (AT_HAND_BYTES / row_bytes.max(1) / ROWS * ROWS).max(ROWS);
        let groups = self.scheme.groups(k);
        if let CodesAs::Words(_) = self.scheme.codes {
            let shape = [n, k].map(|size| (size as i64).to_le_bytes());
            shard.put(&named(SHAPE), 0, shape.as_flattened())?;
        }
        for first in (0..n).step_by(rows) {
            let count = rows.min(n - first);
            let range = first * row_bytes..(first + count) * row_bytes;
            let slice = self.checkpoint.tensor_slice(&weight, range.clone())?.bytes;
            let (slice, dtype) = packable(slice, dtype);
            check_quantizable(self.checkpoint, &weight, &slice, dtype, self.scheme.how.format)?;
            let Codes { format, codes, scales, zeros } = self.quantizer.quantize(self.ctx, &slice, dtype, count, k)?;
            // Per channel all groups of a row have the same.
            let (size, held) = (format.scale_dtype().size(), k.div_ceil(format.group()));
            self.scales.clear();
            scales.chunks((held * size).max(1)).for_each(|row| self.scales.extend_from_slice(&row[..groups * size]));
            self.zeros.clear();
            zeros.chunks(held.max(1)).for_each(|row| self.zeros.extend_from_slice(&row[..groups]));

            shard.put(&named(SCALE), first * groups * size, &self.scales)?;
            match self.scheme.codes {
                CodesAs::Floats => shard.put(&named(CODES), first * k, codes)?,
                CodesAs::Words(bits) => {
                    words_of_codes(codes, bits, k, &mut self.words);
                    shard.put(&named(PACKED), first * k.div_ceil(bits.per_word()) * 4, &self.words)?;
                    if format.zero_points() {
                        words_of_zeros(&self.zeros, bits, groups, &mut self.words);
                        shard.put(&named(ZERO_POINT), first / bits.per_word() * groups * 4, &self.words)?;
                    }
                }
            }
            drop(slice);
            self.checkpoint.release_slice(&weight, range.clone());
            self.advance(range.len())?;
        }
        Ok(())
    }

    fn advance(&mut self, bytes: usize) -> Result<()> {
        self.done += bytes as u64;
        match (self.progress)(self.done, self.total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Cancelled),
        }
    }
}

impl Shard<'_> {
    /// Writes a part of a tensor, which begins with its byte `from`.
    fn put(&mut self, tensor: &str, from: usize, bytes: &[u8]) -> Result<()> {
        let place = self.places.get(tensor).map(|place| place.start + from..place.end);
        match place.filter(|place| bytes.len() <= place.len()) {
            Some(place) => self.write_at(place.start as u64, bytes),
            None => Err(Error::Checkpoint {
                file: self.path.display().to_string(),
                problem: format!("has no room for `{}`", tensor.escape_debug()),
            }),
        }
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        let written = self.file.seek(SeekFrom::Start(at)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|e| Error::io("write", self.path, e))
    }
}
