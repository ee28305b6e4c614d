//! What each format is to a checkpoint that is in it.

use std::borrow::Cow;
use std::fmt;

use sinew_tensor::DType;

use super::module::StoredModule;
use super::probe::Probe;
use crate::error::Result;
use crate::tensors::Tensors;

/// How the modules of a checkpoint are quantized, as its config says.
pub(super) trait QuantizedFormat: fmt::Debug + Send + Sync {
    /// As messages name it.
    fn name(&self) -> Cow<'static, str>;

    /// How a module is stored, in a model of this dtype where the config names one; `None` where it is not quantized.
    fn module(&self, tensors: &Tensors, name: &str, dtype: Option<DType>) -> Result<Option<StoredModule>>;

    /// Refuses floats of a module of a layer that the config names as quantized, or that have parts of a quantized weight.
    fn check_floats(&self, probe: &Probe<'_>) -> Result<()>;

    /// The module that a tensor of no quantized module is of, if the weights behind are divided by what it holds.
    fn scaled_before<'t>(&self, _tensors: &Tensors, _name: &'t str) -> Option<&'t str> {
        None
    }
}
