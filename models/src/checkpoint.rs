//! What a model is loaded from: tensors, and which of its modules are quantized in them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result, first_names};
use crate::quantized::{Quantization, StoredModule};
use crate::tensors::Tensors;

/// The weights of one model: its [`Tensors`], of which those of a quantized module are found by the module's name.
///
/// ```
/// use sinew_models::{Checkpoint, Tensors};
///
/// # let data = [1.0f32, 2.0].map(f32::to_le_bytes).concat();
/// # let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &data).unwrap();
/// # let file = safetensors::serialize([("model.norm.weight", view)], None).unwrap();
/// let checkpoint = Checkpoint::new(Tensors::from_bytes(file)?, None);
/// let prefix = checkpoint.prefix_of("norm", &["model.", ""])?;
/// let tensor = checkpoint.tensor(&format!("{prefix}norm.weight"))?;
/// assert_eq!(tensor.shape, [2]);
/// assert_eq!(tensor.bytes[..4], 1.0f32.to_le_bytes());
/// # Ok::<(), sinew_models::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    tensors: Tensors,
    quantization: Option<Box<Quantization>>,
    /// Those that [`module`](Self::module) has found: some tensors are read for it.
    modules: Mutex<BTreeMap<String, StoredModule>>,
    /// How many tensors were not used when [`refuse_unread`](Self::refuse_unread) last refused none: plans are made many
    /// times.
    harmless: AtomicUsize,
}

impl Checkpoint {
    /// That of some tensors, with modules that are quantized where it is said how.
    pub fn new(tensors: Tensors, quantization: Option<Quantization>) -> Self {
        Self {
            tensors,
            quantization: quantization.map(Box::new),
            modules: Mutex::default(),
            harmless: AtomicUsize::new(usize::MAX),
        }
    }

    /// How modules are quantized, where some are.
    pub fn quantization(&self) -> Option<&Quantization> {
        self.quantization.as_deref()
    }

    /// The module `name`, if it is quantized: see [`Quantization::module`].
    ///
    /// # Errors
    ///
    /// Those of [`Quantization::module`].
    pub fn module(&self, name: &str) -> Result<Option<StoredModule>> {
        let Some(quantization) = &self.quantization else { return Ok(None) };
        if let Some(found) = self.modules.lock().ok().and_then(|modules| modules.get(name).cloned()) {
            return Ok(Some(found));
        }
        let found = quantization.module(&self.tensors, name)?;
        if let (Some(module), Ok(mut modules)) = (&found, self.modules.lock()) {
            modules.insert(name.to_owned(), module.clone());
        }
        Ok(found)
    }

    /// Whether the module `name` has a weight, as a tensor of floats or quantized.
    ///
    /// # Errors
    ///
    /// Those of [`Quantization::module`].
    pub fn has_weight(&self, name: &str) -> Result<bool> {
        Ok(self.contains(&format!("{name}.weight")) || self.module(name)?.is_some())
    }

    /// The first of `prefixes` for which the module `prefix + name` has a weight: the same weights are called
    /// `model.norm.weight` or `norm.weight` depending on the class that saved them.
    ///
    /// # Errors
    ///
    /// [`Error::MissingTensor`] when no prefix leads to one, and those of
    /// [`has_weight`](Self::has_weight).
    pub fn prefix_of<'p>(&self, name: &str, prefixes: &[&'p str]) -> Result<&'p str> {
        match self.find_prefix(name, prefixes)? {
            Some(prefix) => Ok(prefix),
            None => Err(self.missing_weight(name, prefixes)),
        }
    }

    /// Returns the error of [`prefix_of`](Self::prefix_of), which names the weight behind the first prefix.
    pub(crate) fn missing_weight(&self, name: &str, prefixes: &[&str]) -> Error {
        self.missing(&format!("{}{name}.weight", prefixes.first().unwrap_or(&"")))
    }

    /// [`prefix_of`](Self::prefix_of); `None` when no prefix leads to a weight.
    pub(crate) fn find_prefix<'p>(&self, name: &str, prefixes: &[&'p str]) -> Result<Option<&'p str>> {
        for prefix in prefixes {
            if self.has_weight(&format!("{prefix}{name}"))? {
                return Ok(Some(prefix));
            }
        }
        Ok(None)
    }

    /// Warns of the tensors that nobody has asked for, once all are loaded that a model needs. What has a name that ends
    /// with one of `spare` is known not to be needed, and [what changes nothing](Quantization::is_spare) may be there.
    pub fn warn_of_unused(&self, spare: &[&str]) {
        let is_spare =
            |name: &str| self.quantization().is_some_and(|quantization| quantization.is_spare(&self.tensors, name));
        let unused: Vec<&str> = self.unused_but(spare).filter(|name| !is_spare(name)).collect();
        if unused.is_empty() {
            return;
        }
        let (count, all) = (unused.len(), self.names().count());
        tracing::warn!("{count} of {all} tensors in {} are not used: {}", self.name(), first_names(&unused));
    }

    /// Refuses tensors that nobody has asked for, once all are that a model needs, of quantized modules whose others were:
    /// they may change what such a module gives. Those that [`warn_of_unused`](Self::warn_of_unused) leaves out may be there.
    ///
    /// # Errors
    ///
    /// [`Error::Checkpoint`] for the first.
    pub fn refuse_unread(&self, spare: &[&str]) -> Result<()> {
        let Some(quantization) = self.quantization() else { return Ok(()) };
        let unused: BTreeSet<&str> = self.unused_but(spare).collect();
        // What is used stays so: as many are the same.
        if self.harmless.load(Ordering::Relaxed) == unused.len() {
            return Ok(());
        }
        let modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        quantization.check_unread(&self.tensors, &modules, &unused)?;
        self.harmless.store(unused.len(), Ordering::Relaxed);
        Ok(())
    }

    fn unused_but(&self, spare: &[&str]) -> impl Iterator<Item = &str> {
        let ends =
            |name: &str, end: &str| name.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        self.unused().filter(move |name| !spare.iter().any(|end| ends(name, end)))
    }
}

impl Deref for Checkpoint {
    type Target = Tensors;

    fn deref(&self) -> &Tensors {
        &self.tensors
    }
}

#[cfg(test)]
mod tests {
    use safetensors::Dtype;
    use safetensors::tensor::TensorView;

    use super::*;

    #[test]
    fn a_prefix_is_that_under_which_there_is_a_weight() {
        let view = TensorView::new(Dtype::U8, vec![1], &[0]).expect("the size fits");
        let names = ["model.norm.weight", "model.norm.bias"];
        let file = safetensors::serialize(names.map(|name| (name, view.clone())), None).expect("a file");
        let checkpoint = Checkpoint::new(Tensors::from_bytes(file).expect("valid"), None);
        assert_eq!(checkpoint.prefix_of("norm", &["", "model."]).expect("found"), "model.");
        let line = checkpoint.prefix_of("norms", &["bert.", ""]).expect_err("missing").one_line();
        assert!(line.contains("`bert.norms.weight`"), "{line}");
    }
}
