//! Checkpoints that transformers saved, against what transformers computed on them.
//!
//! In f32 every value is within 2e-4 of the values' standard deviation; in 16 bits errors are no larger than those of
//! transformers in the same dtype: RMS 1.0 times, maximum 1.5 times. `tests/fixtures/make_fixtures.py` explains both.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::SafeTensors;
use sinew::models::precision::main_dtype;
use sinew::models::{Load, Tensors};
use sinew::prelude::*;

/// Share of the values' standard deviation that an f32 value may be off.
const F32_TOLERANCE: f64 = 2e-4;
const RMS_FACTOR: f64 = 1.0;
const MAX_FACTOR: f64 = 1.5;

/// What came of one comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The fixture.
    pub fixture: String,
    /// The dtype of the weights.
    pub dtype: DType,
    /// What was measured, each with what is allowed.
    pub measured: Vec<(&'static str, f64, f64)>,
}

impl Comparison {
    /// Whether everything is within what is allowed. NaN is not.
    pub fn passes(&self) -> bool {
        self.measured.iter().all(|(_, found, allowed)| found <= allowed)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fixture, dtype, measured } = self;
        write!(f, "{fixture:<56} {dtype:<5}")?;
        measured.iter().try_for_each(|(what, found, allowed)| write!(f, " {what} {found:.1e} of {allowed:.1e}"))?;
        f.write_str(if self.passes() { "" } else { "  FAILED" })
    }
}

/// The folders of fixtures under `root`, in order.
///
/// # Errors
/// A folder that cannot be read, or fewer fixtures than there have to be.
pub fn fixtures(root: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let entries = std::fs::read_dir(root).map_err(|error| format!("{}: {error}", root.display()))?;
    let mut folders: Vec<PathBuf> =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.join("config.json").exists()).collect();
    folders.sort();
    if folders.len() < 10 {
        return Err(format!("{} has {} fixtures", root.display(), folders.len()).into());
    }
    Ok(folders)
}

/// The folders of fixtures with quantized weights that are whole models, in order.
///
/// # Errors
/// Those of [`fixtures`].
pub fn quantized_fixtures(root: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    let mut folders = fixtures(&root.join("quantized"))?;
    folders.retain(|folder| folder.join("expected.safetensors").exists());
    Ok(folders)
}

/// The last part of a fixture's path.
pub fn name(folder: &Path) -> String {
    folder.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// What transformers computed on a fixture.
pub struct Expectation {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Logits or last hidden states in f32.
    pub values: Vec<f64>,
    /// RMS and largest error of transformers in 16 bits, where the fixture is in 16 bits.
    pub sixteen_bit_errors: Option<(f64, f64)>,
    /// Embeddings of the texts, of an embedding model that has any.
    pub embeddings: Option<Vec<f32>>,
    /// The same with a prompt before each text.
    pub embeddings_prompted: Option<Vec<f32>>,
}

impl Expectation {
    /// Reads a fixture's expected values.
    ///
    /// # Errors
    /// A file that is missing or lacks something.
    pub fn read(folder: &Path) -> Result<Self, Box<dyn Error>> {
        let bytes = std::fs::read(folder.join("expected.safetensors"))?;
        let file = SafeTensors::deserialize(&bytes)?;
        let floats = |name: &str| -> Option<Vec<f32>> {
            let tensor = file.tensor(name).ok().filter(|t| t.dtype() == safetensors::Dtype::F32)?;
            Some(tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
        };
        let values = floats("logits_f32").or_else(|| floats("last_hidden_state")).ok_or("no expected values")?;
        let scalar = |dtype: &str, what: &str| floats(&format!("{dtype}_{what}_error")).map(|v| f64::from(v[0]));
        let tokens = file.tensor("tokens")?;
        Ok(Self {
            tokens: tokens.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b) as u32).collect(),
            values: values.into_iter().map(f64::from).collect(),
            sixteen_bit_errors: ["bf16", "f16"].iter().find_map(|d| Some((scalar(d, "rms")?, scalar(d, "max")?))),
            embeddings: floats("embeddings"),
            embeddings_prompted: floats("embeddings_prompted"),
        })
    }
}

/// All logits or hidden states of a fixture's tokens.
///
/// # Errors
/// A fixture that does not load or run.
pub fn run(
    ctx: &Arc<Context>,
    folder: &Path,
    tokens: &[u32],
    dtype: Option<DType>,
) -> Result<Vec<f64>, Box<dyn Error>> {
    let weights = WeightOptions { dtype, ..WeightOptions::default() };
    let folder = &Folder::new(folder);
    let values: Vec<f32> = match folder.embeds()? {
        true => EmbeddingModel::load_on(ctx.clone(), folder, &weights, &mut |_, _| {})?.hidden_states(tokens)?,
        false => {
            // Some rotary embeddings depend on the length of the whole.
            let context = Some(tokens.len());
            let options = LoadOptions { weights, context, max_logits: 64, ..LoadOptions::default() };
            let mut model = LanguageModel::load_on(ctx.clone(), folder, &options, &mut |_, _| {})?;
            let mut all = Vec::new();
            model.logits(tokens, &mut |rows| {
                all.extend_from_slice(rows);
                Ok(())
            })?;
            all
        }
    };
    Ok(values.into_iter().map(f64::from).collect())
}

/// Compares a fixture with its weights in f32.
///
/// # Errors
/// A fixture that does not load or run.
pub fn in_f32(ctx: &Arc<Context>, folder: &Path) -> Result<Comparison, Box<dyn Error>> {
    let expected = Expectation::read(folder)?;
    let (_, largest) = errors(&run(ctx, folder, &expected.tokens, Some(DType::F32))?, &expected.values)?;
    let relative = largest / standard_deviation(&expected.values);
    Ok(Comparison { fixture: name(folder), dtype: DType::F32, measured: vec![("largest", relative, F32_TOLERANCE)] })
}

/// Compares a fixture with its weights as they are stored, if that is in 16 bits or quantized. What quantized ones stand
/// for is multiplied as it is, while the expected values are of what the format's own code rounds it to.
///
/// # Errors
/// A fixture that does not load or run.
pub fn in_16_bits(ctx: &Arc<Context>, folder: &Path) -> Result<Option<Comparison>, Box<dyn Error>> {
    let expected = Expectation::read(folder)?;
    let Some((rms_allowed, max_allowed)) = expected.sixteen_bit_errors else { return Ok(None) };
    let dtype = main_dtype(&Tensors::open(folder, Load::Mmap)?)?;
    let (rms, largest) = errors(&run(ctx, folder, &expected.tokens, None)?, &expected.values)?;
    let measured = vec![("rms", rms / rms_allowed, RMS_FACTOR), ("max", largest / max_allowed, MAX_FACTOR)];
    Ok(Some(Comparison { fixture: name(folder), dtype, measured }))
}

/// RMS and largest difference.
fn errors(got: &[f64], expected: &[f64]) -> Result<(f64, f64), Box<dyn Error>> {
    if got.len() != expected.len() {
        return Err(format!("{} values where {} are expected", got.len(), expected.len()).into());
    }
    let difference = || got.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let squares: f64 = difference().map(|d| d * d).sum();
    // Not `f64::max`, which passes over NaN.
    let largest = difference().fold(0.0, |most, d| if d > most || d.is_nan() { d } else { most });
    Ok(((squares / got.len() as f64).sqrt(), largest))
}

fn standard_deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}
