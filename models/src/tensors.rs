//! Tensors by name, from safetensors files.
//!
//! Files are opened by reading their headers only. Every range of bytes is checked there, against the file
//! and against the tensor's shape, so that nothing later can reach outside. The files are not trusted: shards stay
//! inside the model's folder, and a damaged header is an error.

use std::borrow::Cow;
use std::collections::btree_map::Entry as Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use safetensors::Dtype;
use serde::Deserialize;
use sinew_memory::MappedFile;

pub(crate) use self::shard::MAX_HEADERS_BYTES;
use self::shard::Shard;
use crate::error::{Error, Result, count_of, first_names};
pub(crate) use crate::files::{INDEX, SINGLE};
use crate::nearest::nearest;
use crate::safetensors::{MAX_HEADER_BYTES, Unique};
use crate::{contents, files, json};

pub(crate) mod floats;
mod shard;

/// An index names this many files at most; the largest published ones name a few hundred.
const MAX_SHARDS: usize = 4096;
/// How the bytes of a checkpoint get into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Load {
    /// Each tensor is read when it is asked for, those that lie row after row slice by slice. Files are opened for that and
    /// closed again; one that is another meanwhile, by its length or when it was changed, is an error.
    #[default]
    Read,
    /// The files are mapped, and tensors borrow from the mapping: slower, since each page has to be mapped and let go of
    /// again. A file that is truncated meanwhile ends the process (see [`MappedFile`]).
    Mmap,
}

/// A tensor of a checkpoint: what the header says of it, and its bytes.
///
/// The bytes are little-endian, in row-major order, and need not be aligned to the element.
#[derive(Debug, Clone)]
pub struct TensorBytes<'a> {
    /// The name in the checkpoint.
    pub name: &'a str,
    /// The type of the elements.
    pub dtype: Dtype,
    /// The extents, outermost first; empty for a scalar.
    pub shape: &'a [usize],
    /// The elements: borrowed from the mapping or from the embedded file, owned where they were read.
    pub bytes: Cow<'a, [u8]>,
}

/// What the header of a checkpoint says of one tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorInfo<'a> {
    /// The type of the elements.
    pub dtype: Dtype,
    /// The extents, outermost first; empty for a scalar.
    pub shape: &'a [usize],
    /// The size in the file.
    pub num_bytes: usize,
    /// The file.
    pub file: &'a Path,
}

/// The tensors of one model, in its safetensors files.
///
/// ```
/// use sinew_models::Tensors;
///
/// # let data = [1.0f32, 2.0].map(f32::to_le_bytes).concat();
/// # let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &data).unwrap();
/// # let file = safetensors::serialize([("model.norm.weight", view)], None).unwrap();
/// let tensors = Tensors::from_bytes(file)?;
/// let tensor = tensors.tensor("model.norm.weight")?;
/// assert_eq!(tensor.shape, [2]);
/// assert_eq!(tensor.bytes[..4], 1.0f32.to_le_bytes());
/// assert_eq!(tensors.unused().count(), 0);
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct Tensors {
    /// The folder or file, for messages.
    origin: String,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Entry>,
    /// The index names these tensors, but no shard has them; a model that needs one reports the entry.
    absent: BTreeMap<String, Absent>,
}

/// An index assigns this tensor to a shard that lacks it.
#[derive(Debug)]
struct Absent {
    index: String,
    shard: String,
}

impl Absent {
    fn error(&self, tensor: &str) -> Error {
        let (tensor, shard) = (tensor.escape_debug(), self.shard.escape_debug());
        let problem = format!("says that `{tensor}` is in {shard}, which has no such tensor");
        Error::Checkpoint { file: self.index.clone(), problem }
    }
}

#[derive(Debug)]
struct Entry {
    shard: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// Within the file, the header included.
    range: Range<usize>,
    used: AtomicBool,
}

impl Tensors {
    /// Opens those in `folder`: `model.safetensors`, or else the shards that
    /// `model.safetensors.index.json` names. The path of a single `.safetensors` file will do as well.
    ///
    /// The headers of the shards decide which tensors there are, as in transformers. The index may leave tensors out,
    /// and may name tensors that no shard has. Asking for a missing one is an error that names the shard.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] for a file that cannot be read, [`Error::Header`] for one that is truncated or damaged.
    /// [`Error::Checkpoint`] for a folder without either file, a shard outside the folder, or a tensor in two shards.
    pub fn open(folder: impl AsRef<Path>, load: Load) -> Result<Self> {
        Self::open_inside(folder.as_ref(), folder.as_ref(), load)
    }

    /// Calls [`open`](Self::open) for a folder inside the `root` of a model. Links may lead to other places in `root`.
    pub(crate) fn open_inside(root: &Path, folder: &Path, load: Load) -> Result<Self> {
        let kind = fs::metadata(folder).map_err(|e| Error::io("open", folder, e))?;
        let mut tensors = Self::empty(folder.display().to_string());
        let mut budget = MAX_HEADERS_BYTES;
        if kind.is_file() {
            tensors.add(Shard::open(folder.to_owned(), load)?, &mut budget)?;
            return Ok(tensors);
        }
        let single = folder.join(SINGLE);
        let index = folder.join(INDEX);
        if single.exists() {
            tensors.add(Shard::open(files::real_path_inside(root, &single)?, load)?, &mut budget)?;
        } else if let Some(text) = files::if_present(read_index(&index))? {
            tensors.add_index(root, &index, &text, load, &mut budget)?;
        } else {
            return Err(nothing_to_load(folder));
        }
        Ok(tensors)
    }

    /// Opens a safetensors file that is in memory already, as `include_bytes!` puts it there.
    ///
    /// # Errors
    ///
    /// [`Error::Header`] for a file that is truncated or damaged.
    pub fn from_bytes(bytes: impl Into<Cow<'static, [u8]>>) -> Result<Self> {
        let mut tensors = Self::empty("the embedded checkpoint".to_owned());
        let path = PathBuf::from(&tensors.origin);
        let mut budget = MAX_HEADERS_BYTES;
        tensors.add(Shard::in_memory(path, bytes.into()), &mut budget)?;
        Ok(tensors)
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The folder or file, as messages call it.
    pub fn name(&self) -> &str {
        &self.origin
    }

    /// Whether there is a tensor called `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The sum of all tensors' sizes.
    pub fn num_bytes(&self) -> u64 {
        self.tensors.values().map(|entry| entry.range.len() as u64).sum()
    }

    /// The tensor called `name`, which counts as used from now on.
    ///
    /// # Errors
    ///
    /// [`Error::MissingTensor`], with the nearest names; with [`Load::Read`], [`Error::Io`] for a file that can no
    /// longer be read.
    pub fn tensor(&self, name: &str) -> Result<TensorBytes<'_>> {
        let (name, entry) = self.entry(name)?;
        self.read(name, entry, entry.range.clone())
    }

    /// As [`tensor`](Self::tensor), but only the bytes in `range`, counted from the tensor's first.
    ///
    /// With [`Load::Read`] this bounds the memory that repacking a large tensor takes.
    ///
    /// # Errors
    ///
    /// As [`tensor`](Self::tensor), and [`Error::Checkpoint`] for a range outside the tensor.
    pub fn tensor_slice(&self, name: &str, range: Range<usize>) -> Result<TensorBytes<'_>> {
        let (name, entry) = self.entry(name)?;
        if range.start > range.end || range.end > entry.range.len() {
            let (start, end, len) = (range.start, range.end, entry.range.len());
            return Err(self.problem(format!("bytes {start}..{end} of `{name}`, which has {len}")));
        }
        let start = entry.range.start;
        self.read(name, entry, start + range.start..start + range.end)
    }

    /// Whether `holds` is true of every slice of the tensor called `name`, which are read, and let go of, one by one: whole
    /// elements of up to eight bytes. Those of many tensors are looked at before anything is known of their sizes.
    pub(crate) fn all_slices(&self, name: &str, mut holds: impl FnMut(&[u8]) -> bool) -> Result<bool> {
        const SLICE: usize = 1 << 20;
        let bytes = self.info(name)?.num_bytes;
        for start in (0..bytes).step_by(SLICE) {
            let range = start..bytes.min(start + SLICE);
            let all = holds(&self.tensor_slice(name, range.clone())?.bytes);
            self.release_slice(name, range);
            if !all {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The same, which does not count as a use.
    pub(crate) fn all_slices_unused(&self, name: &str, holds: impl FnMut(&[u8]) -> bool) -> Result<bool> {
        let used = &self.entry(name)?.1.used;
        let before = used.load(Ordering::Relaxed);
        let all = self.all_slices(name, holds);
        used.store(before, Ordering::Relaxed);
        all
    }

    /// The dtype, shape and size of the tensor called `name`. This does not count as a use.
    ///
    /// # Errors
    ///
    /// [`Error::MissingTensor`], with the nearest names.
    pub fn info(&self, name: &str) -> Result<TensorInfo<'_>> {
        Ok(self.info_of(self.entry(name)?.1))
    }

    /// What [`info`](Self::info) says of the tensor called `name`, if there is one: what need not be there is looked for
    /// without names that are near, which take a thousand times as long.
    pub fn find(&self, name: &str) -> Option<TensorInfo<'_>> {
        self.tensors.get(name).map(|entry| self.info_of(entry))
    }

    /// All tensors, sorted by name, with what [`info`](Self::info) says of them.
    pub fn infos(&self) -> impl Iterator<Item = (&str, TensorInfo<'_>)> {
        self.tensors.iter().map(|(name, entry)| (name.as_str(), self.info_of(entry)))
    }

    fn info_of<'a>(&'a self, entry: &'a Entry) -> TensorInfo<'a> {
        TensorInfo {
            dtype: entry.dtype,
            shape: &entry.shape,
            num_bytes: entry.range.len(),
            file: self.shards[entry.shard].path(),
        }
    }

    /// Lets go of the pages behind the bytes in `range` of the tensor called `name`, counted from its first, once they
    /// have been repacked. They can still be read again.
    pub fn release_slice(&self, name: &str, range: Range<usize>) {
        if let Some((map, range)) = self.mapped(name, range) {
            map.release(range);
        }
    }

    /// Has the tensor called `name`, if there is one, count as used: it was found to be what somebody will read.
    pub(crate) fn mark_used(&self, name: &str) {
        if let Some(entry) = self.tensors.get(name) {
            entry.used.store(true, Ordering::Relaxed);
        }
    }

    /// The tensors that nobody has asked for, sorted: weights that the model would silently do without. A plan of a model
    /// asks for those that it counts.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().filter(|(_, entry)| !entry.used.load(Ordering::Relaxed)).map(|(name, _)| name.as_str())
    }

    fn empty(origin: String) -> Self {
        Self { origin, shards: Vec::new(), tensors: BTreeMap::new(), absent: BTreeMap::new() }
    }

    fn add_index(&mut self, root: &Path, index: &Path, text: &str, load: Load, budget: &mut u64) -> Result<()> {
        let file = index.display().to_string();
        let folder = index.parent().unwrap_or(root);
        let mut expected: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (tensor, shard) in weight_map(text, &file)? {
            expected.entry(shard).or_default().push(tensor);
        }
        if expected.len() > MAX_SHARDS {
            let problem = format!("names {} files; at most {MAX_SHARDS} are read", expected.len());
            return Err(Error::Checkpoint { file, problem });
        }
        for (name, tensors) in expected {
            let path = files::join_inside(folder, &name, &file)?;
            let shard = Shard::open(files::real_path_inside(root, &path)?, load)?;
            if let Err(error) = self.add(shard, budget) {
                // Shards of another checkpoint explain the other faults.
                return Err(self.absent.iter().next().map_or(error, |(tensor, absent)| absent.error(tensor)));
            }
            let shard = self.shards.len() - 1;
            for tensor in tensors {
                if self.tensors.get(&tensor).is_none_or(|entry| entry.shard != shard) {
                    self.absent.insert(tensor, Absent { index: file.clone(), shard: name.clone() });
                }
            }
        }
        self.absent.retain(|tensor, _| !self.tensors.contains_key(tensor));
        let names: Vec<&String> = self.absent.keys().collect();
        if !names.is_empty() {
            tracing::warn!(
                "{file} names {} that no shard has: {}",
                count_of(names.len(), "tensor"),
                first_names(&names)
            );
        }
        Ok(())
    }

    /// Takes in the tensors of a shard, whose header comes off `budget`.
    fn add(&mut self, shard: Shard, budget: &mut u64) -> Result<()> {
        let (header_end, tensors) = shard.header(budget)?;
        let index = self.shards.len();
        for (name, info) in tensors {
            let (start, end) = info.data_offsets;
            // The header has been checked: start <= end <= the file's size - header_end.
            let entry = Entry {
                shard: index,
                dtype: info.dtype,
                shape: info.shape,
                range: header_end + start..header_end + end,
                used: AtomicBool::new(false),
            };
            match self.tensors.entry(name) {
                Slot::Vacant(slot) => drop(slot.insert(entry)),
                Slot::Occupied(slot) => {
                    let (name, other) = (slot.key().escape_debug(), self.shards[slot.get().shard].path().display());
                    return Err(Error::Checkpoint {
                        file: shard.path().display().to_string(),
                        problem: format!("has the tensor `{name}`, which {other} has, too"),
                    });
                }
            }
        }
        self.shards.push(shard);
        Ok(())
    }

    fn entry(&self, name: &str) -> Result<(&str, &Entry)> {
        self.tensors.get_key_value(name).map(|(name, entry)| (name.as_str(), entry)).ok_or_else(|| self.missing(name))
    }

    fn read<'a>(&'a self, name: &'a str, entry: &'a Entry, range: Range<usize>) -> Result<TensorBytes<'a>> {
        let bytes = self.shards[entry.shard].bytes(range)?;
        entry.used.store(true, Ordering::Relaxed);
        Ok(TensorBytes { name, dtype: entry.dtype, shape: &entry.shape, bytes })
    }

    fn mapped(&self, name: &str, range: Range<usize>) -> Option<(&MappedFile, Range<usize>)> {
        let entry = self.tensors.get(name)?;
        let map = self.shards[entry.shard].mapping()?;
        let start = entry.range.start;
        let end = start.saturating_add(range.end).min(entry.range.end);
        Some((map, start.saturating_add(range.start).min(end)..end))
    }

    /// An error that names the folder or file.
    pub(crate) fn problem(&self, problem: String) -> Error {
        Error::Checkpoint { file: self.origin.clone(), problem }
    }

    /// Returns the error for a missing tensor `name`, with the entry of the index or the nearest names.
    pub(crate) fn missing(&self, name: &str) -> Error {
        if let Some(absent) = self.absent.get(name) {
            return absent.error(name);
        }
        let nearest = nearest(name, self.tensors.keys());
        Error::MissingTensor { name: name.to_owned(), file: self.origin.clone(), nearest }
    }
}

fn nothing_to_load(folder: &Path) -> Error {
    let instead =
        contents::instead_of_weights_in(folder).map_or_else(String::new, |instead| format!(", only {instead}"));
    let problem = format!("has neither {SINGLE} nor {INDEX}{instead}");
    Error::Checkpoint { file: folder.display().to_string(), problem }
}

/// The longest index that is read. Like a header, it takes several times its size in memory to parse.
pub(crate) const MAX_INDEX_BYTES: u64 = MAX_HEADER_BYTES;

/// The text of an index.
fn read_index(path: &Path) -> Result<String> {
    files::read_within(path, MAX_INDEX_BYTES)
}

/// The shard of each tensor, from the text of an index.
fn weight_map(text: &str, file: &str) -> Result<BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: Option<Unique<String>>,
    }
    let index: Index = json::parse_as(text).map_err(|source| match source.is_data() {
        true => Error::Config {
            file: file.to_owned(),
            problem: format!("`weight_map` must have the file of each tensor: {source}"),
        },
        false => Error::Json { file: file.to_owned(), source },
    })?;
    let missing = || Error::Config { file: file.to_owned(), problem: "`weight_map` is missing".to_owned() };
    Ok(index.weight_map.ok_or_else(missing)?.0)
}

/// The shards that the index in `folder` names, each once.
pub(crate) fn shards_of_index(folder: &Path) -> Result<BTreeSet<String>> {
    let path = folder.join(INDEX);
    let file = path.display().to_string();
    let shards: BTreeSet<String> = weight_map(&read_index(&path)?, &file)?.into_values().collect();
    for shard in &shards {
        files::join_inside(folder, shard, &file)?;
    }
    Ok(shards)
}

#[cfg(test)]
mod tests;
