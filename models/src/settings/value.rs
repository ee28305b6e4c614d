//! Values of settings as text: one form for files, variables, arguments and what is printed.

use std::num::{IntErrorKind, NonZeroUsize, ParseIntError};
use std::path::{Component, Path, PathBuf};

use sinew_memory::{Bytes, SimdLevel};
use sinew_ops::layers::{GROUP_SIZES, MAX_GROUP};
use sinew_tensor::{BlockFormat, BlockValues, DType};

use crate::Result as CrateResult;
use crate::precision::{Activations, Quantize};
use crate::tensors::Load;

/// What a setting holds. What [`show`](Self::show) gives, [`parse`](Self::parse) takes.
pub trait Value: Sized {
    /// Whether it is a list, whose parts are between commas.
    const LIST: bool = false;
    /// The value of a text.
    ///
    /// # Errors
    /// What values there are.
    fn parse(text: &str) -> Result<Self, String>;
    /// The text of a value.
    fn show(&self) -> String;
    /// Takes a path that does not begin at the root from a folder.
    fn rebase(&mut self, _folder: &Path) {}
}

/// What stands for no value.
const AUTO: &str = "auto";
const NONE: &str = "none";

impl<T: Value> Value for Option<T> {
    fn parse(text: &str) -> Result<Self, String> {
        if text == AUTO { Ok(None) } else { T::parse(text).map(Some) }
    }
    fn show(&self) -> String {
        self.as_ref().map_or_else(|| AUTO.to_owned(), Value::show)
    }
    fn rebase(&mut self, folder: &Path) {
        self.iter_mut().for_each(|value| value.rebase(folder));
    }
}

impl Value for bool {
    fn parse(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => Ok(true),
            "false" | "no" | "off" | "0" => Ok(false),
            _ => Err("it can be true or false, on or off".to_owned()),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for usize {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error| no_count(&error, 0))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// Why a text is no number from `least` on.
fn no_count(error: &ParseIntError, least: usize) -> String {
    match error.kind() {
        IntErrorKind::PosOverflow => format!("it is too large: supported are whole numbers up to {}", usize::MAX),
        _ => format!("supported are whole numbers from {least} on"),
    }
}

impl Value for NonZeroUsize {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error| no_count(&error, 1))
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for String {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() { Err("it must not be empty".to_owned()) } else { Ok(text.to_owned()) }
    }
    fn show(&self) -> String {
        self.clone()
    }
}

/// Names between commas.
impl Value for Vec<String> {
    const LIST: bool = true;
    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }
    fn show(&self) -> String {
        self.join(",")
    }
}

impl Value for PathBuf {
    fn parse(text: &str) -> Result<Self, String> {
        let path = String::parse(text).map(Self::from)?;
        match path.components().next() {
            // A folder of that name is `./~`.
            Some(Component::Normal(first)) if first.as_encoded_bytes().starts_with(b"~") => {
                Err("`~` is a home to shells alone, which did not replace it: write the whole path".to_owned())
            }
            _ => Ok(path),
        }
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
    fn rebase(&mut self, folder: &Path) {
        *self = folder.join(&*self);
    }
}

impl Value for Bytes {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: sinew_memory::Error| error.to_string())
    }
    /// All digits: what is printed for people is rounded.
    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl Value for SimdLevel {
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|error: sinew_memory::Error| error.to_string())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Load {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "read" => Ok(Self::Read),
            "mmap" => Ok(Self::Mmap),
            _ => Err("supported are read and mmap".to_owned()),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::Read => "read",
            Self::Mmap => "mmap",
        }
        .to_owned()
    }
}

impl Value for Activations {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "bf16" => Ok(Self::Bf16),
            "int8" => Ok(Self::Int8),
            _ => Err("supported are bf16 and int8".to_owned()),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// The dtype of weights in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDType {
    /// As the checkpoint has them.
    AsStored,
    /// f32, f16 or bf16.
    Float(DType),
    /// Quantized as they are loaded.
    Quantized(BlockValues),
}

impl Value for WeightDType {
    fn parse(text: &str) -> Result<Self, String> {
        let quantized = [BlockValues::Int8, BlockValues::Int4, BlockValues::F8E4M3];
        let float = || DType::COMPUTE.into_iter().find(|dtype| dtype.name() == text).map(Self::Float);
        let blocks = || quantized.into_iter().find(|values| values.name() == text).map(Self::Quantized);
        match text {
            AUTO => Ok(Self::AsStored),
            _ => float().or_else(blocks).ok_or_else(|| {
                "supported are auto, f32, f16, bf16, and int8, int4 and fp8, to which weights are quantized".to_owned()
            }),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::AsStored => AUTO,
            Self::Float(dtype) => dtype.name(),
            Self::Quantized(values) => values.name(),
        }
        .to_owned()
    }
}

/// How many values of a row share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupSize {
    /// 32 of int4 and int8, and of fp8 all of the row, as vLLM reads no smaller groups of it.
    Auto,
    /// So many: one of [`GROUP_SIZES`].
    Of(usize),
    /// All of the row.
    Channel,
}

impl GroupSize {
    /// How weights are quantized with it.
    ///
    /// # Errors
    /// Values without a format in such groups.
    pub fn quantize(self, values: BlockValues, zero_points: bool, keep_head: bool) -> CrateResult<Quantize> {
        let (group, per_channel) = match self {
            Self::Auto if values.is_integer() => (32, false),
            Self::Of(group) => (group, false),
            // Groups repeat the scale of their row: the fewest.
            Self::Auto | Self::Channel => (MAX_GROUP, true),
        };
        let format = BlockFormat::new(values, group, DType::BF16, zero_points).map_err(sinew_ops::Error::from)?;
        Ok(Quantize { format, per_channel, head: !keep_head })
    }
}

impl Value for GroupSize {
    fn parse(text: &str) -> Result<Self, String> {
        let size = GROUP_SIZES.into_iter().find(|size| size.to_string() == text);
        match (text, size, GROUP_SIZES) {
            (AUTO, ..) => Ok(Self::Auto),
            ("channel", ..) => Ok(Self::Channel),
            (_, Some(size), _) => Ok(Self::Of(size)),
            (_, None, [a, b, c]) => Err(format!("supported are {AUTO}, {a}, {b}, {c} and channel")),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::Auto => AUTO.to_owned(),
            Self::Of(group) => group.to_string(),
            Self::Channel => "channel".to_owned(),
        }
    }
}

/// The dtype of a cache; `None` is that of [`Precision::of`](crate::precision::Precision::of).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvDType(pub Option<DType>);

/// The dtype of old keys and values, where it is another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OldKvDType(pub Option<DType>);

/// Dtypes of caches with scales, as settings call them.
const SCALED_KV: [(&str, DType); 2] = [("int8", DType::I8), ("fp8", DType::F8E4M3)];

fn kv_name(dtype: DType) -> String {
    SCALED_KV.iter().find(|(_, known)| *known == dtype).map_or(dtype.name(), |(name, _)| name).to_owned()
}

impl Value for KvDType {
    fn parse(text: &str) -> Result<Self, String> {
        let mut all = DType::COMPUTE.into_iter().map(|dtype| (dtype.name(), dtype)).chain(SCALED_KV);
        match (text, all.find(|(name, _)| *name == text)) {
            (AUTO, _) => Ok(Self(None)),
            (_, Some((_, dtype))) => Ok(Self(Some(dtype))),
            (_, None) => Err("supported are auto, f32, f16, bf16, int8 and fp8".to_owned()),
        }
    }
    fn show(&self) -> String {
        self.0.map_or_else(|| AUTO.to_owned(), kv_name)
    }
}

impl Value for OldKvDType {
    fn parse(text: &str) -> Result<Self, String> {
        let known = SCALED_KV.into_iter().find(|(name, _)| *name == text);
        match (text, known) {
            (NONE, _) => Ok(Self(None)),
            (_, Some((_, dtype))) => Ok(Self(Some(dtype))),
            (_, None) => Err("supported are none, int8 and fp8".to_owned()),
        }
    }
    fn show(&self) -> String {
        self.0.map_or_else(|| NONE.to_owned(), kv_name)
    }
}
